-- What was noted, in the order of the steps.
SELECT step, text, written_at
FROM notes
ORDER BY step, written_at
