-- All sites at one step, in the order in which they were seen.
SELECT *
FROM stats
ORDER BY iteration, "order", rank
