-- Runs once, for a new volume: the service gets a role that owns its database and is no superuser.
\getenv password POSTGRES_PASSWORD
CREATE ROLE scoring LOGIN PASSWORD :'password';
CREATE DATABASE scoring OWNER scoring;
-- From now on the superuser logs in from within the container alone: docker compose exec postgres psql -U postgres
ALTER ROLE CURRENT_USER PASSWORD NULL;
