-- One quantity at one site, step by step. Where that is more than $points rows, each bucket keeps its
-- ends and the rows where a statistic is least or greatest, and each run of NaN or infinity its ends.
WITH observed AS (
    SELECT
        * EXCLUDE (sketch_keys, sketch_counts),
        nans > 0 OR infs > 0 AS is_broken,
        row_number() OVER in_time - 1 AS position,
        count(*) OVER () AS points,
    FROM stats
    WHERE site = $site AND quantity = $quantity
    WINDOW in_time AS (ORDER BY step, iteration, "order", rank)
),
marked AS (
    SELECT
        *,
        position * $buckets // points AS bucket,
        is_broken AND NOT (
            coalesce(lag(is_broken) OVER in_time, false)
            AND coalesce(lead(is_broken) OVER in_time, false)
        ) AS is_boundary,
    FROM observed
    WINDOW in_time AS (ORDER BY position)
),
kept AS (
    SELECT unnest([
        min(position), max(position),
        arg_min(position, mean), arg_max(position, mean),
        arg_min(position, std), arg_max(position, std),
        arg_min(position, "min"), arg_max(position, "max"),
        arg_min(position, abs_mean), arg_max(position, abs_mean),
        arg_min(position, abs_max), arg_max(position, abs_max),
        arg_min(position, rms), arg_max(position, rms),
        arg_max(position, zeros), arg_max(position, nans), arg_max(position, infs),
        arg_max(position, dead_units), arg_max(position, constant_units),
        arg_min(position, batch_std), arg_max(position, batch_std)
    ]) AS position
    FROM marked
    GROUP BY bucket
)
SELECT
    step, iteration, dtype, shape,
    "count", zeros, nans, infs,
    mean, std, "min", "max", abs_mean, abs_max, rms,
    units, dead_units, constant_units, batch_std
FROM marked
WHERE points <= $points OR is_boundary OR position IN (SELECT position FROM kept)
ORDER BY position
