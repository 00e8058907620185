-- The sketches of one quantity at one site, merged by columns of steps.
WITH observed AS (
    SELECT *
    FROM stats
    WHERE site = $site AND quantity = $quantity
        -- Without those that were left out.
        AND (len(sketch_keys) > 0 OR "count" = zeros + nans + infs)
),
columns AS (
    SELECT
        step,
        -- At most $columns of them, of equal numbers of steps.
        ((row_number() OVER (ORDER BY step) - 1) * least($columns, count(*) OVER ())
            // count(*) OVER ())::INTEGER AS "column"
    FROM (SELECT DISTINCT step FROM observed)
),
totals AS (
    SELECT
        "column",
        min(step) AS first_step,
        max(step) AS last_step,
        sum("count")::BIGINT AS "count",
        sum(zeros)::BIGINT AS zeros,
        sum(nans)::BIGINT AS nans,
        sum(infs)::BIGINT AS infs,
        min("min") AS "min",
        max("max") AS "max"
    FROM observed
    JOIN columns USING (step)
    GROUP BY "column"
),
bins AS (
    SELECT "column", "key", sum(n)::BIGINT AS n
    FROM (
        SELECT "column", unnest(sketch_keys) AS "key", unnest(sketch_counts) AS n
        FROM observed
        JOIN columns USING (step)
    )
    GROUP BY "column", "key"
),
sketches AS (
    SELECT "column", list("key" ORDER BY "key") AS keys, list(n ORDER BY "key") AS counts
    FROM bins
    GROUP BY "column"
)
SELECT totals.*, coalesce(keys, []) AS keys, coalesce(counts, []) AS counts
FROM totals
LEFT JOIN sketches USING ("column")
ORDER BY "column"
