-- The steps after one, as the lowest rank saw them: the ranks step together.
SELECT step, kind, recorded, reason, started_at, duration_secs, recording_secs
FROM steps
WHERE step > $after AND rank = (SELECT min(rank) FROM steps)
ORDER BY step, started_at
