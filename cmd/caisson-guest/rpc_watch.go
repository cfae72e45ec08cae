package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"sync"
	"time"

	"connectrpc.com/connect"

	"caisson.dev/caisson/internal/guest/filesystem"
)

// Bounds on watchers that are not streams: nobody may ever ask for what they
// hold.
const (
	maxWatchers = 64
	maxPending  = 4096
)

// WatchDir streams changes until the client goes, or changes are lost.
func (s *filesystemService) WatchDir(ctx context.Context, req *connect.Request[filesystem.WatchDirRequest], stream *connect.ServerStream[filesystem.WatchDirResponse]) error {
	w, err := s.watch(req, req.Msg.GetPath(), req.Msg.GetRecursive(), req.Msg.GetAllowNetworkMounts())
	if err != nil {
		return err
	}
	defer w.Close()
	start := &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}
	if err := stream.Send(&filesystem.WatchDirResponse{Event: start}); err != nil {
		return err
	}
	var mu sync.Mutex // one Send at a time: changes and keepalives
	every := keepalive(req.Header())
	var silent *time.Timer
	silent = time.AfterFunc(every, func() {
		mu.Lock()
		defer mu.Unlock()
		if silent.Reset(every); ctx.Err() == nil {
			alive := &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}
			stream.Send(&filesystem.WatchDirResponse{Event: alive})
		}
	})
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		silent.Stop()
	}()
	defer context.AfterFunc(ctx, func() { w.Close() })()
	for {
		changes, err := w.next()
		for _, e := range s.events(w, changes, req.Msg.GetIncludeEntry()) {
			mu.Lock()
			silent.Reset(every)
			serr := stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: e}})
			mu.Unlock()
			if serr != nil {
				return serr
			}
		}
		if err != nil {
			return watchError(ctx, w.root, err)
		}
	}
}

func (s *filesystemService) watch(req connect.AnyRequest, name string, recursive, network bool) (*watch, error) {
	a, full, err := s.path(req, name)
	if err != nil {
		return nil, err
	}
	w, err := newWatch(s.files, a, full, recursive, network)
	if err != nil {
		return nil, watchError(context.Background(), full, err)
	}
	return w, nil
}

func watchError(ctx context.Context, name string, err error) error {
	switch {
	case ctx.Err() != nil:
		return contextError(ctx.Err())
	case errors.Is(err, errLost), errors.Is(err, errTooMany):
		return connect.NewError(connect.CodeResourceExhausted, err)
	default:
		return pathError(name, err)
	}
}

// events adds to each change what the client asked for.
func (s *filesystemService) events(w *watch, changes []change, withEntry bool) []*filesystem.FilesystemEvent {
	out := make([]*filesystem.FilesystemEvent, 0, len(changes))
	for _, c := range changes {
		e := &filesystem.FilesystemEvent{Name: text(c.name), Type: c.kind}
		if c.name == "" {
			e.Name = "."
		}
		gone := c.kind == filesystem.EventType_EVENT_TYPE_REMOVE || c.kind == filesystem.EventType_EVENT_TYPE_RENAME
		if withEntry && !gone {
			e.Entry, _ = s.entry(w.user, path.Join(w.root, c.name)) // it may be gone already
		}
		out = append(out, e)
	}
	return out
}

// watchers are the watches of clients that cannot read a stream. Each is read
// into memory until the client asks, up to a bound.
type watchers struct {
	mu   sync.Mutex
	byID map[string]*pendingWatch
}

type pendingWatch struct {
	watch  *watch
	events []*filesystem.FilesystemEvent
	err    error
}

func newWatchers() *watchers { return &watchers{byID: map[string]*pendingWatch{}} }

func randomID() string { return rand.Text()[:16] }

func (s *filesystemService) CreateWatcher(_ context.Context, req *connect.Request[filesystem.CreateWatcherRequest]) (*connect.Response[filesystem.CreateWatcherResponse], error) {
	w, err := s.watch(req, req.Msg.GetPath(), req.Msg.GetRecursive(), req.Msg.GetAllowNetworkMounts())
	if err != nil {
		return nil, err
	}
	id, p := "w"+randomID(), &pendingWatch{watch: w}
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	if len(s.watchers.byID) >= maxWatchers {
		w.Close()
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("more than %d watchers", maxWatchers))
	}
	s.watchers.byID[id] = p
	go s.collect(p, req.Msg.GetIncludeEntry())
	return connect.NewResponse(&filesystem.CreateWatcherResponse{WatcherId: id}), nil
}

// collect ends when the watcher is removed.
func (s *filesystemService) collect(p *pendingWatch, withEntry bool) {
	for {
		changes, err := p.watch.next()
		events := s.events(p.watch, changes, withEntry)
		s.watchers.mu.Lock()
		p.events = append(p.events, events...)
		if len(p.events) > maxPending {
			p.events, err = p.events[:maxPending], errLost
		}
		if err != nil && !errors.Is(err, os.ErrClosed) {
			p.err = err
		}
		s.watchers.mu.Unlock()
		if err != nil {
			p.watch.Close()
			return
		}
	}
}

var errNoWatcher = connect.NewError(connect.CodeNotFound, errors.New("no such watcher"))

// GetWatcherEvents gives each change once. What it could not keep it reports
// as an error, after the last change that it has.
func (s *filesystemService) GetWatcherEvents(_ context.Context, req *connect.Request[filesystem.GetWatcherEventsRequest]) (*connect.Response[filesystem.GetWatcherEventsResponse], error) {
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	p := s.watchers.byID[req.Msg.GetWatcherId()]
	if p == nil {
		return nil, errNoWatcher
	}
	events := p.events
	p.events = nil
	if len(events) == 0 && p.err != nil {
		return nil, watchError(context.Background(), p.watch.root, p.err)
	}
	return connect.NewResponse(&filesystem.GetWatcherEventsResponse{Events: events}), nil
}

func (s *filesystemService) RemoveWatcher(_ context.Context, req *connect.Request[filesystem.RemoveWatcherRequest]) (*connect.Response[filesystem.RemoveWatcherResponse], error) {
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	p := s.watchers.byID[req.Msg.GetWatcherId()]
	if p == nil {
		return nil, errNoWatcher
	}
	delete(s.watchers.byID, req.Msg.GetWatcherId())
	p.watch.Close()
	return connect.NewResponse(&filesystem.RemoveWatcherResponse{}), nil
}
