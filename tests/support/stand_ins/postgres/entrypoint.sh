# Makes the cluster and the database at the first start, as the variables state, then runs the command of the container.
set -eu
data=/var/lib/postgresql/stand-in
as_postgres="setpriv --reuid=postgres --regid=postgres --init-groups"
if [ ! -d "$data" ]; then
    install --directory --owner=postgres --group=postgres --mode=0700 "$data.new" /run/postgresql
    printf '%s' "$POSTGRES_PASSWORD" > /tmp/password
    chmod 0644 /tmp/password
    # shellcheck disable=SC2086  (several arguments)
    $as_postgres initdb --pgdata="$data.new" --username="$POSTGRES_USER" --pwfile=/tmp/password $POSTGRES_INITDB_ARGS
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$data.new/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | $as_postgres postgres --single -D "$data.new" postgres
    mv "$data.new" "$data"
fi
install --directory --owner=postgres --group=postgres /run/postgresql
exec $as_postgres "$@" -D "$data" -c listen_addresses='*' -c unix_socket_directories=/run/postgresql
