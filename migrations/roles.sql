-- Roles for the programs of the service, with the least that each needs. Run it as a superuser, or as a role that may create
-- roles and is a member of the owner, after the first `tarsy-scoring migrate` and after each later one:
--
--   psql "$ADMIN_URL" -v ON_ERROR_STOP=1 -c 'SET search_path TO public' -f migrations/roles.sql
--
-- The owner is the role that ran `migrate`; it keeps that task alone. The other roles cannot log in: give each program a role
-- of its own, for example
--
--   CREATE ROLE my_api LOGIN PASSWORD '...' IN ROLE scoring_api;
--
--   scoring_worker    worker, bridge, and the commands that change data: rescore, pause, prune, erase, export, anchors, ...
--   scoring_api       api
--   scoring_readonly  insights, the scaler, reports: reads everything and changes nothing
--
-- Safe to repeat. A table that a later revision adds is readable by all three and writable by workers; the rest of its rights
-- needs another run of the script that comes with that revision.

DO $roles$
DECLARE
  place text := current_schema();
  owner text := (SELECT tableowner FROM pg_tables WHERE schemaname = place AND tablename = 'session_scores');
  name text;
  -- What the API writes: requests, scores that it makes or cancels, their events, references, labels and review lists,
  -- decisions about missing tools, kept answers, and who changed what.
  changed_by_api text[] := ARRAY[
    'kept_answers', 'scoring_requests', 'session_references', 'session_scores', 'sessions', 'tool_merges',
    'tool_states'];
  added_by_api text[] := ARRAY['dirty_days', 'changes', 'score_labels', 'scoring_events'];
BEGIN
  IF owner IS NULL THEN
    RAISE EXCEPTION 'schema % has no table session_scores: run tarsy-scoring migrate first, and set search_path', place;
  END IF;

  FOREACH name IN ARRAY ARRAY['scoring_worker', 'scoring_api', 'scoring_readonly'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', name);
    END IF;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', place, name);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', place, name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', place, name);
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I GRANT SELECT ON TABLES TO %I', owner, place, name);
  END LOOP;
  EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', place);

  EXECUTE format('GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO scoring_worker', place);
  EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO scoring_worker', place);
  EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %I.tarsy_scoring_version FROM scoring_worker', place);
  EXECUTE format(
    'ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I GRANT INSERT, UPDATE, DELETE ON TABLES TO scoring_worker', owner, place);

  FOREACH name IN ARRAY changed_by_api LOOP
    EXECUTE format('GRANT INSERT, UPDATE ON %I.%I TO scoring_api', place, name);
  END LOOP;
  FOREACH name IN ARRAY added_by_api LOOP
    EXECUTE format('GRANT INSERT ON %I.%I TO scoring_api', place, name);
  END LOOP;
  -- Of many references of a session the newest stay.
  EXECUTE format('GRANT DELETE ON %I.session_references TO scoring_api', place);
  EXECUTE format('GRANT UPDATE (confirmed_by, confirmed_at) ON %I.drift_findings TO scoring_api', place);
END
$roles$;
