package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/host"
)

// build makes an image and puts it into the store. The returned file holds it
// there. The caller has the lock of the reference.
func (s *Store) build(ctx context.Context, r Ref, src source, known string, o Options) (record, *os.File, error) {
	work, err := newScratch(s.path("tmp"))
	if err != nil {
		return record{}, nil, s.spaceError(err, 0)
	}
	defer work.remove()
	f, err := os.OpenFile(filepath.Join(work.dir, "image"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return record{}, nil, s.spaceError(err, 0)
	}
	rec, err := s.make(ctx, work, f, src, known, o)
	if err == nil {
		err = s.publish(f, &rec, o.Progress)
	}
	if err != nil {
		f.Close()
		return record{}, nil, err
	}
	return rec, f, nil
}

// make lets an unpack child write the image file out.
func (s *Store) make(ctx context.Context, work *scratch, out *os.File, src source, known string, o Options) (record, error) {
	ctx, stop := context.WithCancelCause(ctx)
	cancel := func() { stop(nil) }
	defer cancel()
	spool, err := work.unlinked("spool")
	if err != nil {
		return record{}, s.spaceError(err, 0)
	}
	defer spool.Close()
	o.Progress(Update{Stage: StageStart})
	feed, err := src.feed(ctx, o.Progress)
	if err != nil {
		return record{}, err
	}
	feed.req.Limits, feed.req.Known = o.Limits.withDefaults(), known
	c, err := s.startUnpack(feed, spool, out)
	if err != nil {
		cancel()
		return record{}, errors.Join(err, feed.wait())
	}
	need := 2 * feed.size // the spool and the image
	result, err := c.finish(ctx, func(stage Stage, done, total int64) {
		if 2*total > need {
			need = 2 * total
			if err := s.checkSpace(need); err != nil && stage == StageUnpack {
				stop(err)
			}
		}
		o.Progress(Update{Stage: stage, Done: done, Total: total})
	})
	err = firstCause(err, feed.wait, cancel)
	if failureOf(err) == failNoSpace {
		err = s.spaceError(err, need)
	}
	if err != nil {
		return record{}, err
	}
	return record{Size: result.size, Dropped: result.dropped, Config: result.config.Config, Source: result.config.Source}, nil
}

func (s *Store) startUnpack(feed *feed, spool, out *os.File) (*child, error) {
	defer closeFiles(feed.files)
	if err := s.checkSpace(2 * feed.size); err != nil {
		return nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer statusW.Close()
	c, err := startChild(modeUnpack, feed.req, host.Jail{
		Files: append([]*os.File{spool, out, statusW}, feed.files...),
	}, statusR)
	if err != nil {
		statusR.Close()
	}
	return c, err
}

// firstCause picks between what the unpack child says and what its feed says.
// When the child only noticed that its input stopped, the feed knows why;
// otherwise the feed's trouble is that the child went away.
func firstCause(unpack error, wait func() error, cancel func()) error {
	asked := map[failure]bool{failSource: true, failCutOff: true, failEmpty: true}
	if unpack != nil && !asked[failureOf(unpack)] {
		cancel()
		wait()
		return unpack
	}
	if feed := wait(); feed != nil {
		return feed
	}
	return unpack
}

// publish checks what the child wrote, names it by its digest and makes it
// durable. An image of the same digest is replaced: it has the same bytes, or
// is damaged. Who uses the old file keeps it.
func (s *Store) publish(f *os.File, rec *record, progress Progress) error {
	if err := checkSuper(f, rec.Size); err != nil {
		return failf(failInternal, "the unpack child wrote no image: %w", err)
	}
	digest, err := hashFile(f, rec.Size, func(done int64) {
		progress(Update{Stage: StageVerify, Done: done, Total: rec.Size})
	})
	if err != nil {
		return err
	}
	rec.Digest = digest
	if _, err := hold(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return s.spaceError(err, rec.Size)
	}
	path := s.blobPath(digest)
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("cannot store image: %w", err)
	}
	return host.SyncDir(filepath.Dir(path))
}

// checkSpace refuses before the work what would fail after it.
func (s *Store) checkSpace(need int64) error {
	has, err := freeSpace(s.dir)
	if err != nil || need <= has {
		return err
	}
	return s.spaceError(failf(failNoSpace, "not enough space"), need)
}

// spaceError turns a full disk into what a user can act on.
func (s *Store) spaceError(err error, need int64) error {
	if failureOf(err) != failNoSpace {
		return err
	}
	has, _ := freeSpace(s.dir)
	msg := fmt.Sprintf("no space left in %s: has %s", s.dir, size(has))
	if need > 0 {
		msg = fmt.Sprintf("no space left in %s: needs about %s, has %s", s.dir, size(need), size(has))
	}
	return &api.Error{
		Code: "no_space", Message: msg, Err: err,
		Hint: "'caisson image gc' frees what nothing uses; or keep data elsewhere with --data DIR",
	}
}

// size writes bytes for people.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
