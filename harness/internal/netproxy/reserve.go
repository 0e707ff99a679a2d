//go:build unix

package netproxy

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// reservation keeps a port ours while nothing listens on it: a socket that is bound and never listens. A SYN to the port
// is then answered by RST, and no other process can take it before the link listens again.
type reservation struct{ fd int }

// listenTCP listens so that a reservation can stand beside it.
func listenTCP(addr string) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var opt error
		err := raw.Control(func(fd uintptr) {
			opt = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		if err != nil {
			return err
		}
		return opt
	}}
	l, err := lc.Listen(context.Background(), "tcp4", addr)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func reserve(addr *net.TCPAddr) (*reservation, error) {
	syscall.ForkLock.RLock() // as package net does: no child may inherit it between the two calls
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	to := &unix.SockaddrInet4{Port: addr.Port}
	copy(to.Addr[:], addr.IP.To4())
	// Not SO_REUSEADDR: with it any other listener, which commonly has that option, could stand beside this socket.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err == nil {
		err = unix.Bind(fd, to)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind socket: %w", err)
	}
	return &reservation{fd: fd}, nil
}

func (r *reservation) close() error { return unix.Close(r.fd) }
