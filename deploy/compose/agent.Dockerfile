# Envoy with the agent that runs it. `make images` fills the context.
FROM meshlog-envoy:dev
COPY bin/ /bin/
# A new volume takes the owner of the directory over which it is mounted.
COPY --chown=65532:65532 data/ /data/
USER 65532:65532
