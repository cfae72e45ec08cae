package host

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked says that somebody else holds the lock.
var ErrLocked = errors.New("locked by another process")

// Lock is a lock on a file, which ends with the process however that dies. It
// is shared among the goroutines that hold the same Lock, not a mutex.
type Lock struct{ file *os.File }

// LockExclusive waits until nobody else holds the lock.
func LockExclusive(path string) (*Lock, error) { return lock(path, unix.LOCK_EX) }

// LockShared waits until nobody holds the lock exclusively.
func LockShared(path string) (*Lock, error) { return lock(path, unix.LOCK_SH) }

// TryLockExclusive fails with ErrLocked instead of waiting.
func TryLockExclusive(path string) (*Lock, error) { return lock(path, unix.LOCK_EX|unix.LOCK_NB) }

// TryLockShared fails with ErrLocked instead of waiting.
func TryLockShared(path string) (*Lock, error) { return lock(path, unix.LOCK_SH|unix.LOCK_NB) }

// lock opens or makes the file. A holder may remove it before it lets go;
// whoever then waited on the removed file starts again.
func lock(path string, how int) (*Lock, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot lock %q: %w", path, err)
		}
		if err := flock(fd, how); err != nil {
			unix.Close(fd)
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = ErrLocked
			}
			return nil, fmt.Errorf("cannot lock %q: %w", path, err)
		}
		var held, there unix.Stat_t
		if unix.Fstat(fd, &held) == nil && unix.Lstat(path, &there) == nil &&
			held.Ino == there.Ino && held.Dev == there.Dev {
			return &Lock{os.NewFile(uintptr(fd), path)}, nil
		}
		unix.Close(fd)
	}
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

// Unlock lets go and leaves the file.
func (l *Lock) Unlock() error { return l.file.Close() }

// UnlockRemove deletes the file, then lets go. Only for an exclusive holder.
func (l *Lock) UnlockRemove() error {
	return errors.Join(os.Remove(l.file.Name()), l.file.Close())
}
