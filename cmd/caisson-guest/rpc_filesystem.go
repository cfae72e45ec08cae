package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest/filesystem"
)

// filesystemService is E2B's filesystem.Filesystem. For whom it acts, see act.
type filesystemService struct {
	*box
	watchers *watchers
}

func newFilesystemService(b *box) *filesystemService {
	return &filesystemService{b, newWatchers()}
}

// maxEntries bounds one listing; PID 1 holds all of it.
const maxEntries = 32768

// path resolves the user and the path of a request.
func (s *filesystemService) path(req connect.AnyRequest, name string) (account, string, error) {
	a, err := s.userOf(req.Header())
	if err != nil {
		return account{}, "", err
	}
	_, _, workDir, _ := s.settings()
	full, err := resolvePath(name, a.home, workDir)
	if err != nil {
		return account{}, "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	return a, full, nil
}

func (s *filesystemService) Stat(_ context.Context, req *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	a, name, err := s.path(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	e, err := s.entry(a, name)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
}

// entry describes one path.
func (s *filesystemService) entry(a account, name string) (*filesystem.EntryInfo, error) {
	var e *filesystem.EntryInfo
	err := s.act(a, name, func() (err error) {
		e, err = entryInfo(name, newNames())
		return err
	})
	return e, pathError(name, err)
}

func (s *filesystemService) MakeDir(_ context.Context, req *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	a, name, err := s.path(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	err = s.act(a, name, func() error {
		st, err := os.Stat(name)
		if err == nil && st.IsDir() {
			return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", name))
		}
		if err == nil {
			return refuse("path already exists but it is not a directory: %s", name)
		}
		return makeDirs(a, name)
	})
	if err != nil {
		return nil, pathError(name, err)
	}
	e, err := s.entry(a, name)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{Entry: e}), nil
}

func (s *filesystemService) Move(_ context.Context, req *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	a, src, err := s.path(req, req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	_, dst, err := s.path(req, req.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	err = s.act(a, path.Dir(src), func() error {
		if _, err := os.Lstat(src); err != nil {
			return err
		}
		if unix.Geteuid() == 0 && a.uid != 0 && hasLinks(path.Dir(dst)) {
			return &os.PathError{Op: "rename", Path: dst, Err: unix.EACCES} // as in act
		}
		if err := makeDirs(a, path.Dir(dst)); err != nil {
			return err
		}
		return os.Rename(src, dst)
	})
	if err != nil {
		return nil, pathError(src, err)
	}
	e, err := s.entry(a, dst)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.MoveResponse{Entry: e}), nil
}

func (s *filesystemService) Remove(_ context.Context, req *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	a, name, err := s.path(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if err := s.act(a, path.Dir(name), func() error { return os.RemoveAll(name) }); err != nil {
		return nil, pathError(name, err)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}

func (s *filesystemService) ListDir(_ context.Context, req *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	a, name, err := s.path(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	l := &lister{depth: max(req.Msg.GetDepth(), 1)}
	err = s.act(a, name, func() error {
		// A link to a directory is followed here and nowhere below; what is
		// listed keeps the name that was asked for.
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			return err
		}
		if st, err := os.Stat(real); err != nil || !st.IsDir() {
			return errors.Join(err, refuse("path is not a directory: %s", name))
		}
		l.names, l.entries = newNames(), nil
		return l.walk(real, name, 1)
	})
	if err != nil {
		return nil, pathError(name, err)
	}
	return connect.NewResponse(&filesystem.ListDirResponse{Entries: l.entries}), nil
}

// lister walks a directory in lexical order, parents first.
type lister struct {
	depth   uint32
	names   *names
	entries []*filesystem.EntryInfo
}

func (l *lister) walk(real, shown string, level uint32) error {
	list, err := os.ReadDir(real)
	if err != nil && level == 1 {
		return err
	}
	for _, d := range list {
		e, err := entryInfo(path.Join(real, d.Name()), l.names)
		if err != nil {
			continue // gone meanwhile, or not to be seen
		}
		if len(l.entries) == maxEntries {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("more than %d entries", maxEntries))
		}
		shownName := path.Join(shown, d.Name())
		e.Path = text(shownName)
		l.entries = append(l.entries, e)
		if d.IsDir() && level < l.depth {
			if err := l.walk(path.Join(real, d.Name()), shownName, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// pathError gives a failed file operation the code that clients expect.
func pathError(name string, err error) error {
	if err == nil {
		return nil
	}
	var ready *connect.Error
	if errors.As(err, &ready) {
		return ready
	}
	var refused *refusedError
	code := connect.CodeInternal
	switch {
	case errors.Is(err, os.ErrNotExist):
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("path not found: %s", name))
	case errors.As(err, &refused), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENAMETOOLONG):
		code = connect.CodeInvalidArgument
	case errors.Is(err, unix.ELOOP), err.Error() == "EvalSymlinks: too many links":
		code = connect.CodeFailedPrecondition
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS):
		code = connect.CodePermissionDenied
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = connect.CodeResourceExhausted
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EXDEV):
		code = connect.CodeFailedPrecondition
	}
	return connect.NewError(code, err)
}
