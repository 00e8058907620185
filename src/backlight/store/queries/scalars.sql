-- Each scalar by step, from the lowest rank that logged it. Where that is more than $points rows, each
-- bucket keeps its ends, its extremes and the ends of its widest gap, and each run of NaN or infinity and
-- each gap that is as wide as a bucket keeps its ends. Where no loss was logged it is the one that backward
-- passes started from.
WITH told AS (
    SELECT step, name, value, logged_at, rank
    FROM scalars
    UNION ALL BY NAME
    SELECT step, 'loss' AS name, loss AS value, started_at AS logged_at, rank
    FROM steps
    WHERE loss IS NOT NULL AND NOT EXISTS (SELECT 1 FROM scalars WHERE name = 'loss')
),
logged AS (
    SELECT step, name, value, logged_at
    FROM told
    WHERE step > $after
    QUALIFY rank = min(rank) OVER (PARTITION BY name)
),
placed AS (
    SELECT
        step, name, value, logged_at,
        CASE WHEN isfinite(value) THEN 0 WHEN isnan(value) THEN 1 WHEN value > 0 THEN 2 ELSE 3 END AS kind,
        row_number() OVER (PARTITION BY name ORDER BY step, logged_at) - 1 AS position,
        count(*) OVER (PARTITION BY name) AS points,
    FROM logged
),
marked AS (
    SELECT
        *,
        position * $buckets // points AS bucket,
        kind > 0 AND NOT (
            coalesce(lag(kind) OVER in_time = kind, false)
            AND coalesce(lead(kind) OVER in_time = kind, false)
        ) AS is_boundary,
        step - lag(step) OVER in_time AS distance,
        -- However many gaps are in one bucket: those that can be seen are fewer than there are buckets.
        (max(step) OVER all_of_it - min(step) OVER all_of_it) / $buckets AS visible,
        coalesce(distance > visible, false) OR coalesce(lead(step) OVER in_time - step > visible, false) AS is_gap,
    FROM placed
    WINDOW in_time AS (PARTITION BY name ORDER BY position), all_of_it AS (PARTITION BY name)
),
kept AS (
    SELECT name, unnest([
        min(position), max(position), arg_max(position - 1, distance), arg_max(position, distance),
        arg_min(position, value) FILTER (kind = 0), arg_max(position, value) FILTER (kind = 0)
    ]) AS position
    FROM marked
    GROUP BY name, bucket
)
SELECT step, name, value, logged_at
FROM marked
WHERE points <= $points OR is_boundary OR is_gap OR (name, position) IN (SELECT (name, position) FROM kept)
ORDER BY name, position
