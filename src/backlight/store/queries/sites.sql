-- Network order: module calls in the order of their first outputs, each with its inputs and outputs,
-- then the module's parameters, buffers and optimizer states. A module without outputs of its own
-- stands before the first one inside it, or at the end.
WITH calls AS (
    SELECT module, call, min(site) AS position
    FROM sites
    WHERE tensor_class = 'output'
    GROUP BY module, call
),
modules AS (
    SELECT module, min(position) AS position
    FROM calls
    GROUP BY module
),
paths AS (
    SELECT position, string_split(module, '.') AS path, unnest(range(least(len(path), 100))) AS depth
    FROM modules
),
containers AS (
    SELECT array_to_string(path[1:depth], '.') AS module, min(position) AS position
    FROM paths
    GROUP BY ALL
)
SELECT site, name, tensor_class, module, module_class, place, call, kind, aliases, first_step
FROM sites
LEFT JOIN calls USING (module, call)
LEFT JOIN modules USING (module)
LEFT JOIN containers USING (module)
ORDER BY
    CASE
        WHEN tensor_class = 'tensor' THEN site
        WHEN tensor_class IN ('input', 'output') THEN coalesce(calls.position, site)
        ELSE coalesce(modules.position, containers.position, 2147483647)
    END,
    modules.position IS NOT NULL,
    CASE tensor_class
        WHEN 'input' THEN 0 WHEN 'output' THEN 1 WHEN 'tensor' THEN 2
        WHEN 'parameter' THEN 3 WHEN 'buffer' THEN 4 ELSE 5
    END,
    site
