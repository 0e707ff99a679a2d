package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// cachePath is a path in conform's folder for files shared by all runs of this user, whose folders it makes.
func cachePath(elem ...string) (string, error) {
	root, err := os.UserCacheDir()
	if err != nil { // no HOME, as under some service managers
		root = filepath.Join(os.TempDir(), "conform-"+strconv.Itoa(os.Getuid()))
	}
	path := filepath.Join(append([]string{root, "conform"}, elem...)...)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("make cache folder: %w", err)
	}
	return path, nil
}

// lockFile waits until this process alone holds the named lock. The kernel gives the lock back when the process ends,
// however it ends. waiting is called once when another process holds it.
func lockFile(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	path, err := cachePath(name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := tryLock(f)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, errLocked) {
			f.Close()
			return nil, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for lock %s: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}

// errLocked says that another open file holds the lock.
var errLocked = errors.New("locked by another process")

// tryLock takes the file's lock or returns errLocked. Closing the file gives it back.
func tryLock(f *os.File) error {
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return errLocked
	default:
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
}
