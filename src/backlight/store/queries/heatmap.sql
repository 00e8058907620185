-- For each site and column of steps the value of greatest magnitude, over iterations and ranks too.
SELECT
    site,
    "column",
    CASE WHEN max(value) >= -min(value) THEN max(value) ELSE min(value) END AS value,
    sum(nans)::BIGINT AS nans,
    sum(infs)::BIGINT AS infs
FROM (
    SELECT site, "column", ({value})::DOUBLE AS value, nans, infs
    FROM stats
    JOIN columns USING (step)
    WHERE quantity = $quantity
)
GROUP BY site, "column"
ORDER BY site, "column"
