# Stand-in for mongo:6 where no registry is in reach: the same server, without mongosh and without the entrypoint's
# user making; who uses it makes users through the server's localhost exception.
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libcurl4 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 999 mongodb \
 && install -d -o mongodb /data/db
COPY mongod /usr/bin/
VOLUME /data/db
EXPOSE 27017
USER mongodb
CMD ["mongod", "--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.25"]
