# One program, the libraries that it needs, and what checks its health. `make
# images` fills the context.
FROM scratch
COPY . /
USER 65532:65532
