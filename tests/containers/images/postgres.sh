#!/bin/bash
# Makes the data directory and the database at the first start, as the official image does.
set -euo pipefail
user=${POSTGRES_USER:-postgres}
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username="$user" --auth-host=scram-sha-256 --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") >/dev/null
  printf "listen_addresses = '*'\n" >> "$PGDATA/postgresql.conf"
  printf 'host all all all scram-sha-256\n' >> "$PGDATA/pg_hba.conf"
  pg_ctl -w -o "-c listen_addresses=''" start >/dev/null   # nobody from outside before the scripts have run
  [ "${POSTGRES_DB:-postgres}" = postgres ] || createdb --username="$user" --maintenance-db=postgres "$POSTGRES_DB"
  for script in /docker-entrypoint-initdb.d/*.sql; do
    [ -e "$script" ] && psql --no-psqlrc -v ON_ERROR_STOP=1 -U "$user" -d postgres -f "$script"
  done
  pg_ctl -m fast -w stop >/dev/null
fi
exec "$@"
