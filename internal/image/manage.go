package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"caisson.dev/caisson/api"
)

// Entry is one line of a listing.
type Entry struct {
	Ref     string    `json:"ref"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"` // bytes on disk
	Created time.Time `json:"created"`
	Used    time.Time `json:"used"`
	InUse   bool      `json:"in_use"`
}

// List returns the references of the store, sorted.
func (s *Store) List() ([]Entry, error) {
	all, err := s.records()
	var out []Entry
	for _, r := range all {
		e := Entry{Ref: r.Ref, Digest: r.Digest, Size: r.Size, Created: r.Created, Used: r.used.UTC().Truncate(time.Second)}
		if f, ferr := os.Open(s.blobPath(r.Digest)); ferr == nil {
			if st, serr := f.Stat(); serr == nil {
				e.Size = st.Sys().(*syscall.Stat_t).Blocks * 512
			}
			e.InUse = flock(f, syscall.LOCK_EX|syscall.LOCK_NB) != nil
			f.Close()
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Ref, b.Ref) })
	return out, err
}

// Remove removes a reference, and its image when nothing else stands for it.
// By digest it removes the image and all that stands for it.
func (s *Store) Remove(ctx context.Context, r Ref) (freed int64, err error) {
	if r.Path != "" {
		if r.Path, err = filepath.Abs(r.Path); err != nil {
			return 0, err
		}
	}
	digest, drop, err := s.removal(r)
	if err != nil {
		return 0, err
	}
	lock, err := s.lockRef(ctx, r, func(Update) {})
	if err != nil {
		return 0, err
	}
	defer lock.UnlockRemove()
	last := r.Kind == KindDigest
	if !last {
		others, err := s.standsFor(digest)
		if err != nil {
			return 0, err
		}
		last = len(others) <= 1
	}
	// The image goes first: a reference to nothing is made again, but an image
	// without a reference would be gc's.
	if last {
		if freed, err = s.removeBlob(digest); err != nil {
			return 0, err
		}
	}
	for _, key := range drop {
		if err := os.Remove(s.recordPath(key)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return freed, err
		}
	}
	return freed, nil
}

// removal says which image and which records go with r.
func (s *Store) removal(r Ref) (digest string, keys []string, err error) {
	if r.Kind == KindDigest {
		img, err := s.byDigest(r)
		if err != nil {
			return "", nil, err
		}
		img.Close()
		refs, err := s.standsFor(img.Digest)
		for _, other := range refs {
			keys = append(keys, refKey(other))
		}
		return img.Digest, keys, err
	}
	rec, err := s.readRecord(refKey(r))
	if err != nil {
		return "", nil, err
	}
	if rec == nil {
		return "", nil, &api.Error{
			Code: "image_not_found", Message: fmt.Sprintf("cannot remove image %q: it is not in the store", r),
			Hint: "'caisson image ls' lists what is there",
		}
	}
	return rec.Digest, []string{refKey(r)}, nil
}

// standsFor returns the references of an image.
func (s *Store) standsFor(digest string) (refs []Ref, err error) {
	all, err := s.records()
	if err != nil {
		return nil, err
	}
	for _, rec := range all {
		if rec.Digest == digest {
			r, err := ParseRef(rec.Ref)
			if err != nil {
				return nil, err
			}
			refs = append(refs, r)
		}
	}
	return refs, nil
}

var errInUse = errors.New("in use")

// removeBlob removes an image that nobody holds.
func (s *Store) removeBlob(digest string) (freed int64, err error) {
	f, err := os.Open(s.blobPath(digest))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return 0, &api.Error{
			Code: "image_in_use", Message: fmt.Sprintf("cannot remove image %s: a sandbox uses it", digest[:19]),
			Hint: "end that sandbox first", Err: errInUse,
		}
	}
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Blocks * 512, os.Remove(f.Name())
}

// GCResult says what GC removed.
type GCResult struct {
	Refs  []string `json:"refs"`
	Freed int64    `json:"freed"` // bytes
}

// GC removes what killed processes left, images that nothing stands for, and,
// with unused above 0, references that were not used for that long.
func (s *Store) GC(ctx context.Context, unused time.Duration) (res GCResult, err error) {
	var errs []error
	if res.Freed, err = cleanScratch(s.path("tmp")); err != nil {
		errs = append(errs, err)
	}
	all, err := s.records()
	if err != nil {
		return res, err // an image may belong to a record that cannot be read
	}
	keep := map[string]bool{}
	for _, rec := range all {
		if unused > 0 && time.Since(rec.used) > unused {
			freed, err := s.removeByName(ctx, rec.Ref)
			if err == nil {
				res.Refs, res.Freed = append(res.Refs, rec.Ref), res.Freed+freed
				continue
			}
			if !errors.Is(err, errInUse) {
				errs = append(errs, err)
			}
		}
		keep[filepath.Base(s.blobPath(rec.Digest))] = true
	}
	freed, err := s.removeOrphans(keep)
	res.Freed += freed
	return res, errors.Join(append(errs, err)...)
}

func (s *Store) removeByName(ctx context.Context, ref string) (int64, error) {
	r, err := ParseRef(ref)
	if err != nil {
		return 0, err
	}
	return s.Remove(ctx, r)
}

// removeOrphans removes images outside keep. One that was published after keep
// was made is still held by its maker.
func (s *Store) removeOrphans(keep map[string]bool) (freed int64, err error) {
	names, err := filepath.Glob(s.path("blobs/sha256", "*.erofs"))
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, name := range names {
		if keep[filepath.Base(name)] {
			continue
		}
		n, err := s.removeBlob(strings.TrimSuffix(filepath.Base(name), ".erofs"))
		if err != nil && !errors.Is(err, errInUse) {
			errs = append(errs, err)
		}
		freed += n
	}
	return freed, errors.Join(errs...)
}

// Verify reads a whole image and compares it with its digest.
func (s *Store) Verify(ctx context.Context, r Ref, progress Progress) error {
	img, err := s.stored(r)
	if err != nil {
		return err
	}
	defer img.Close()
	progress = oneAtATime(progress)
	got, err := hashFile(img.file, img.Size, func(done int64) {
		progress(Update{Stage: StageVerify, Done: done, Total: img.Size})
	})
	if err != nil {
		return err
	}
	if got != img.Digest {
		return &api.Error{
			Code: "image_corrupt", Message: fmt.Sprintf("image %q is damaged: its digest is %s instead of %s", r, got, img.Digest),
			Hint: "pull or build the image again with --refresh",
		}
	}
	return ctx.Err()
}

// stored opens what the store has for r and makes nothing.
func (s *Store) stored(r Ref) (*Image, error) {
	switch r.Kind {
	case KindDigest:
		return s.byDigest(r)
	case KindHost, KindNone:
		return nil, refError("cannot verify the host image: it is not in the store", "")
	}
	if r.Path != "" {
		abs, err := filepath.Abs(r.Path)
		if err != nil {
			return nil, err
		}
		r.Path = abs
	}
	return s.byName(r)
}
