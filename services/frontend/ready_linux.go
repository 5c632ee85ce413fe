package frontend

import (
	"errors"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// readyReader reads a connection without TLS. It takes a buffer only when there is
// something to read, so an idle connection has none: 32 KB of memory for each.
type readyReader struct {
	raw syscall.RawConn
	// Fields instead of results, so that a read allocates nothing.
	do   func(fd uintptr) (done bool)
	size int
	most int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

// newReadyReader returns nil if only Read can read the connection.
func newReadyReader(c net.Conn) *readyReader {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	r := &readyReader{raw: raw}
	r.do = func(fd uintptr) bool {
		r.buf = r.pool.Get(r.size)
		for {
			if r.n, r.err = syscall.Read(int(fd), (*r.buf)[:min(len(*r.buf), r.most)]); !errors.Is(r.err, syscall.EINTR) {
				break
			}
		}
		if r.err == nil && r.n > 0 {
			return true
		}
		r.pool.Put(r.buf)
		r.buf = nil
		if r.err == nil {
			r.err = io.EOF
		}
		return !errors.Is(r.err, syscall.EAGAIN)
	}
	return r
}

// read waits until it can read, and returns a buffer of the pool of a size with n
// bytes, which are most at most.
func (r *readyReader) read(size, most int, pool mem.BufferPool) (buf *[]byte, n int, err error) {
	r.size, r.most, r.pool, r.buf, r.n, r.err = size, most, pool, nil, 0, nil
	err = r.raw.Read(r.do)
	buf, n = r.buf, r.n
	r.pool, r.buf = nil, nil
	switch {
	case err != nil && buf != nil:
		pool.Put(buf)
		return nil, 0, err
	case err != nil:
		return nil, 0, err
	case buf == nil:
		return nil, 0, r.err
	}
	return buf, n, nil
}
