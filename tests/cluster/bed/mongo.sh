# shellcheck shell=bash
# mongod on the head, with authorization: nobody gets in without a password. Sourced by bed.sh.
#
# Each cluster user gets a database user and a file with the whole URI (mode 0600, the user's own); passwords are made
# here at the first start and stored in files only, never in a command line or a log.

MONGO_USER=lsdflow-mongo

start_mongo() {
  id "$MONGO_USER" >/dev/null 2>&1 || useradd --system --shell /usr/sbin/nologin "$MONGO_USER"
  install -d -m 700 -o "$MONGO_USER" "$BED/mongo"
  start_daemon mongod setpriv --reuid "$MONGO_USER" --regid "$MONGO_USER" --clear-groups \
    "$BED/bin/mongod" --auth --dbpath "$BED/mongo" --bind_ip "127.0.0.1,$HEAD_ADDRESS" --port "$MONGO_PORT" \
    --nounixsocket --wiredTigerCacheSizeGB 0.25 --quiet
  wait_for 30 bash -c "exec 3<>/dev/tcp/127.0.0.1/$MONGO_PORT"
  make_database_users
}

make_database_users() {
  install -d -m 711 "$BED/secrets"
  local user
  for user in admin "${USERS[@]%:*}"; do
    [[ -s $BED/secrets/$user ]] || (umask 077 && head -c 24 /dev/urandom | base64 | tr '+/' '-_' >"$BED/secrets/$user")
  done
  "$BED_PYTHON" "$BED_SOURCE/mongo_users.py" "$BED/secrets" "127.0.0.1:$MONGO_PORT" "${USERS[@]%:*}"
  for user in "${USERS[@]%:*}"; do
    install -d -o "$user" -g "$user" -m 700 "/home/$user/.lsdflow"
    (umask 077 && printf 'mongodb://%s:%s@%s:%s/?authSource=admin\n' "$user" "$(<"$BED/secrets/$user")" \
      "$HEAD_ADDRESS" "$MONGO_PORT" >"/home/$user/.lsdflow/mongo.uri")
    chown "$user:$user" "/home/$user/.lsdflow/mongo.uri"
  done
}

# A full restart as after a crash of its machine: SIGKILL, then a new process on the same files.
restart_mongo() {
  stop_daemon mongod KILL
  sleep "${1:-2}"
  start_mongo
}
