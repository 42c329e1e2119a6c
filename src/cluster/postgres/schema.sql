-- The records of a cluster of cronkeeper nodes. Format 1, as the comment on the schema says.
CREATE SCHEMA cronkeeper;

CREATE TABLE cronkeeper.record (
    path text COLLATE "C" PRIMARY KEY,
    parent text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    -- Writes since it was made.
    version int4 NOT NULL,
    -- The commits that made it and that changed it last, and when, in microseconds.
    created int8 NOT NULL,
    changed int8 NOT NULL,
    created_at int8 NOT NULL,
    changed_at int8 NOT NULL
);
CREATE INDEX record_of_folder ON cronkeeper.record (parent);

-- One row. Each commit locks it first, and so all have one order.
CREATE TABLE cronkeeper.head (revision int8 NOT NULL, nonce int8 NOT NULL) WITH (fillfactor = 50);
INSERT INTO cronkeeper.head VALUES (0, 0);

-- The newest commits.
CREATE TABLE cronkeeper.newest (revision int8 PRIMARY KEY, nonce int8 NOT NULL);

-- Carries a commit out if each of its conditions holds. A condition is a version, or: -1 absent, -2 exists, -3 anything.
-- An operation with data writes, one that `deletes` removes, any other only checks. Refuses by the place of the first
-- operation whose condition does not hold, and the version that it found.
CREATE FUNCTION cronkeeper.apply(
    paths text[], parents text[], conditions int4[], datas bytea[], deletes bool[], nonce int8, kept int8,
    OUT refused int4, OUT version int4, OUT revision int8, OUT moment int8
) LANGUAGE plpgsql
-- A plan made while the tables were small would read them whole later. What these settings forbid and nothing can avoid
-- counts as very expensive, and would be compiled by LLVM for each call.
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
-- In the other schemas others may have functions and operators of the same names.
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '2s', true);
    -- A wait for a standby that is given up is only warned of.
    PERFORM set_config('client_min_messages', 'warning', true);
    -- What is answered has been written to the disk, and to the standbys that must have it.
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT head.revision + 1 INTO STRICT revision FROM cronkeeper.head FOR UPDATE;
    SELECT op.place - 1, record.version INTO refused, version
        FROM unnest(paths, conditions) WITH ORDINALITY AS op (path, condition, place)
        LEFT JOIN cronkeeper.record ON record.path = op.path
        WHERE CASE op.condition
            WHEN -1 THEN record.version IS NOT NULL
            WHEN -2 THEN record.version IS NULL
            WHEN -3 THEN false
            ELSE record.version IS DISTINCT FROM op.condition
        END
        ORDER BY op.place LIMIT 1;
    IF FOUND THEN
        revision := NULL;
        RETURN;
    END IF;
    moment := extract(epoch FROM clock_timestamp()) * 1000000;
    DELETE FROM cronkeeper.record
        WHERE path IN (SELECT op.path FROM unnest(paths, deletes) AS op (path, is_deleted) WHERE op.is_deleted);
    INSERT INTO cronkeeper.record AS old
        SELECT op.path, op.parent, op.data, 0, apply.revision, apply.revision, apply.moment, apply.moment
            FROM unnest(paths, parents, datas) AS op (path, parent, data) WHERE op.data IS NOT NULL
        ON CONFLICT (path) DO UPDATE SET
            data = excluded.data, version = old.version + 1,
            changed = excluded.changed, changed_at = excluded.changed_at;
    UPDATE cronkeeper.head SET revision = apply.revision, nonce = apply.nonce;
    INSERT INTO cronkeeper.newest VALUES (apply.revision, apply.nonce);
    DELETE FROM cronkeeper.newest WHERE newest.revision <= apply.revision - kept;
    -- A hint for those who listen.
    PERFORM pg_notify('cronkeeper', apply.revision::text);
END
$$;

-- Reads all parts at one moment, that of the statement. A part has a kind: 0 what is known of the record at its path, 1 also
-- its data, 2 what is known of those directly below its path, 3 the nonce of the commit with its revision. `place` counts
-- the parts from 1; 0 is the newest commit, whose `version` is 1 on a standby.
CREATE FUNCTION cronkeeper.look(kinds int4[], paths text[], revisions int8[])
    RETURNS TABLE (
        place int8, path text, data bytea, version int4, created int8, changed int8, created_at int8, changed_at int8,
        bytes int4
    )
LANGUAGE sql STABLE SET jit = off SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 0::int8, NULL::text, NULL::bytea, pg_is_in_recovery()::int4, revision, nonce, NULL::int8, NULL::int8, NULL::int4
        FROM cronkeeper.head
    UNION ALL
    SELECT part.place, NULL, CASE WHEN part.kind = 1 THEN record.data END, record.version, record.created, record.changed,
           record.created_at, record.changed_at, length(record.data)
        FROM unnest(kinds, paths) WITH ORDINALITY AS part (kind, path, place)
        JOIN cronkeeper.record ON record.path = part.path WHERE part.kind < 2
    UNION ALL
    SELECT part.place, record.path, NULL, record.version, record.created, record.changed, record.created_at,
           record.changed_at, length(record.data)
        FROM unnest(kinds, paths) WITH ORDINALITY AS part (kind, path, place)
        JOIN cronkeeper.record ON record.parent = part.path WHERE part.kind = 2
    UNION ALL
    SELECT part.place, NULL, NULL, NULL, newest.revision, newest.nonce, NULL, NULL, NULL
        FROM unnest(revisions) WITH ORDINALITY AS part (revision, place)
        JOIN cronkeeper.newest ON newest.revision = part.revision
$$;

COMMENT ON SCHEMA cronkeeper IS 'cronkeeper 1';
