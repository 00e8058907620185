-- One quantity at one site, step by step. Where that is more than $points rows, each bucket keeps its
-- ends, the steps where a statistic is least or greatest and the ends of its widest gap, each gap that is as
-- wide as a bucket its ends, and each run of steps with NaN, infinity or nothing finite its ends. A step is
-- kept with all its iterations.
WITH observed AS (
    SELECT *
    FROM stats
    WHERE site = $site AND quantity = $quantity
),
steps AS (
    SELECT step, count(*) AS "rows", bool_or(nans > 0 OR infs > 0 OR mean IS NULL) AS is_broken
    FROM observed
    GROUP BY step
),
marked AS (
    SELECT
        step,
        -- As many buckets of steps as make about $points rows.
        (row_number() OVER in_time - 1)
            * greatest(1, $buckets * count(*) OVER () // sum("rows") OVER ()) // count(*) OVER () AS bucket,
        lag(step) OVER in_time AS before,
        is_broken AND NOT (
            coalesce(lag(is_broken) OVER in_time, false)
            AND coalesce(lead(is_broken) OVER in_time, false)
        ) AS is_boundary,
    FROM steps
    WINDOW in_time AS (ORDER BY step)
),
kept AS (
    SELECT unnest([
        min(step), max(step), arg_max(before, step - before), arg_max(step, step - before),
        arg_min(step, mean), arg_max(step, mean),
        arg_min(step, std), arg_max(step, std),
        arg_min(step, "min"), arg_max(step, "min"),
        arg_min(step, "max"), arg_max(step, "max"),
        arg_min(step, abs_mean), arg_max(step, abs_mean),
        arg_min(step, abs_max), arg_max(step, abs_max),
        arg_min(step, rms), arg_max(step, rms),
        arg_min(step, zeros), arg_max(step, zeros), arg_max(step, nans), arg_max(step, infs),
        arg_min(step, dead_units), arg_max(step, dead_units),
        arg_min(step, constant_units), arg_max(step, constant_units),
        arg_min(step, batch_std), arg_max(step, batch_std){own_extremes}
    ]) AS step
    FROM observed
    JOIN marked USING (step)
    GROUP BY bucket
    UNION
    SELECT step
    FROM marked
    WHERE is_boundary
    UNION
    -- However many gaps are in one bucket: those that can be seen are fewer than there are buckets.
    SELECT unnest([before, step])
    FROM marked
    WHERE step - before > (SELECT (max(step) - min(step)) / $buckets FROM steps)
)
SELECT
    step, iteration, dtype, shape,
    "count", zeros, nans, infs,
    mean, std, "min", "max", abs_mean, abs_max, rms,
    units, dead_units, constant_units, batch_std{own}
FROM observed
WHERE (SELECT count(*) FROM observed) <= $points OR step IN (SELECT step FROM kept)
ORDER BY step, iteration, "order", rank
