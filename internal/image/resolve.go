package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/host"
)

// Resolve returns the image that r stands for, and makes it when the store
// does not have it. Of several processes that want the same one, one makes it
// and the others wait. The caller closes the image.
func (s *Store) Resolve(ctx context.Context, r Ref, o Options) (*Image, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Progress = oneAtATime(o.Progress)
	switch r.Kind {
	case KindNone:
		return nil, refError("cannot use an image without a reference", "name one, for example host or debian:bookworm")
	case KindHost:
		return &Image{Ref: r}, nil
	case KindDigest:
		return s.byDigest(r)
	case KindName:
		return s.byName(r)
	}
	if r.Path != "" {
		abs, err := filepath.Abs(r.Path)
		if err != nil {
			return nil, fmt.Errorf("cannot use %q: %w", r.Path, err)
		}
		r.Path = abs
	}
	if r.Kind == KindDir {
		if rel, err := filepath.Rel(r.Path, s.dir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return nil, refError(fmt.Sprintf("cannot use image %q: the image store lies in it", r), "use 'host' for this machine's own programs, or a directory beside the store")
		}
	}
	img, rec, err := s.obtain(ctx, r, o)
	if err != nil {
		return nil, userError(r, err)
	}
	if o.Name != "" {
		named := Ref{Kind: KindName, Name: o.Name}
		rec.Ref = named.String()
		if err := s.writeRecord(named, rec); err != nil {
			return nil, errors.Join(err, img.Close())
		}
	}
	return img, nil
}

// obtain finds or makes an image under the lock of its reference.
func (s *Store) obtain(ctx context.Context, r Ref, o Options) (*Image, record, error) {
	lock, err := s.lockRef(ctx, r, o.Progress)
	if err != nil {
		return nil, record{}, err
	}
	defer lock.UnlockRemove()
	src := s.source(r, o)
	state, err := src.state(ctx)
	if err != nil {
		return nil, record{}, err
	}
	rec, err := s.readRecord(refKey(r))
	if err != nil && !o.Refresh {
		return nil, record{}, err
	}
	if rec != nil && rec.State == state && !o.Refresh {
		img, err := s.use(r, *rec)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return img, *rec, err
		}
	}
	known := ""
	if rec != nil {
		known = rec.Source
	}
	fresh, f, err := s.build(ctx, r, src, known, o)
	if failureOf(err) == failUnchanged {
		img, err := s.use(r, *rec)
		if err == nil {
			return img, *rec, nil
		}
		fresh, f, err = s.build(ctx, r, src, "", o)
		if err != nil {
			return nil, record{}, err
		}
	} else if err != nil {
		return nil, record{}, err
	}
	fresh.Ref, fresh.State, fresh.Created = r.String(), state, time.Now().UTC().Truncate(time.Second)
	if err := s.writeRecord(r, fresh); err != nil {
		f.Close()
		return nil, record{}, err
	}
	return fresh.image(s, r, f), fresh, nil
}

// use opens what a record stands for and notes the time of use.
func (s *Store) use(r Ref, rec record) (*Image, error) {
	f, err := s.openBlob(rec.Digest, rec.Size)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	os.Chtimes(s.recordPath(refKey(r)), now, now) // only gc reads it
	return rec.image(s, r, f), nil
}

func (rec record) image(s *Store, r Ref, f *os.File) *Image {
	return &Image{
		Ref: r, Digest: rec.Digest, Path: s.blobPath(rec.Digest), Size: rec.Size,
		Config: rec.Config, Dropped: rec.Dropped, file: f,
	}
}

// lockRef waits for whoever makes the same image now.
func (s *Store) lockRef(ctx context.Context, r Ref, progress Progress) (*host.Lock, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for first := true; ; first = false {
		lock, err := host.TryLockExclusive(s.path("locks", refKey(r)))
		if !errors.Is(err, host.ErrLocked) {
			return lock, err
		}
		if first {
			progress(Update{Stage: StageWait, Note: "another process makes the same image"})
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// byName finds an image that was stored under a name.
func (s *Store) byName(r Ref) (*Image, error) {
	rec, err := s.readRecord(refKey(r))
	if err != nil {
		return nil, err
	}
	if rec == nil {
		return nil, &api.Error{
			Code: "image_not_found", Message: fmt.Sprintf("cannot find image %q in the store", r),
			Hint: "'caisson image ls' lists what is there; a registry image is written HOST/REPO:TAG, packages debian:SUITE,PACKAGE",
		}
	}
	img, err := s.use(r, *rec)
	if errors.Is(err, os.ErrNotExist) {
		err = &api.Error{
			Code: "image_corrupt", Message: fmt.Sprintf("cannot use image %q: its file is gone from the store", r),
			Hint: "build it again with --name " + r.String(), Err: err,
		}
	}
	return img, err
}

// byDigest finds an image by its digest or the beginning of it.
func (s *Store) byDigest(r Ref) (*Image, error) {
	names, err := filepath.Glob(s.blobPath(r.Digest + "*")[:len(s.blobPath(r.Digest))-len(".erofs")] + "*.erofs")
	if err != nil {
		return nil, err
	}
	if len(names) != 1 {
		what := "no image"
		if len(names) > 1 {
			what = fmt.Sprintf("%d images", len(names))
		}
		return nil, &api.Error{
			Code: "image_not_found", Message: fmt.Sprintf("cannot use %q: %s in the store with that digest", r, what),
			Hint: "'caisson image ls' lists what is there",
		}
	}
	digest := "sha256:" + strings.TrimSuffix(filepath.Base(names[0]), ".erofs")
	f, err := s.openBlob(digest, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	rec := record{Digest: digest, Size: st.Size()}
	all, _ := s.records() // a damaged record of another image does not matter here
	for _, other := range all {
		if other.Digest == digest {
			rec.Config, rec.Dropped = other.Config, other.Dropped
		}
	}
	return rec.image(s, r, f), nil
}

// oneAtATime lets several goroutines report.
func oneAtATime(p Progress) Progress {
	if p == nil {
		return func(Update) {}
	}
	var mu sync.Mutex
	return func(u Update) {
		mu.Lock()
		defer mu.Unlock()
		p(u)
	}
}

// hints say what to do about a failure. The message says what it was.
var hints = map[failure]string{
	failInternal: "try again; if it stays, report it",
	failFormat:   "check that the reference names a container image and its kind is right (oci:, docker-archive:, dir:)",
	failLimit:    "if you trust the image, use 'caisson image pull' or 'build' with --max-size or --max-entries",
	failEmpty:    "check that this is a root file system and not an empty or artifact-only image",
	failDigest:   "the source is damaged or tampered with; do not use it",
	failPlatform: "ask its publisher for an image of this machine's platform",
	failNotFound: "check the name and the tag",
	failAuth:     "put the registry's user and password under \"auths\" in ~/.docker/config.json (or --auth-file); credential helpers are not run",
	failRefused:  "a registry on a private or loopback address must be written as that address with its port",
	failNetwork:  "check the registry's name and that this machine reaches it",
	failChanged:  "let writers of the directory finish, and try again",
	failArchive:  "the image is damaged or hostile; get it again from its publisher",
	failCutOff:   "the image is damaged or hostile; get it again from its publisher",
}

// userError says in one line what could not be done, and in one what to do.
func userError(r Ref, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	code := failureOf(err)
	e := &api.Error{Code: "image_failed", Message: fmt.Sprintf("cannot use image %q: %v", r, err), Hint: hints[code], Err: err}
	switch {
	case errors.Is(err, os.ErrNotExist) && r.Path != "":
		e.Code, e.Message, e.Hint = "image_not_found", fmt.Sprintf("cannot use image %q: %q does not exist", r, r.Path), "check the path"
	case errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EACCES):
		e.Code, e.Hint = "image_unreadable", "run as a user who may read it"
	case code == failNotFound:
		e.Code = "image_not_found"
	case code == failNoSpace:
		e.Code = "no_space"
	}
	return e
}
