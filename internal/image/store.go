package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/host"
)

// Store keeps images on disk:
//
//	blobs/sha256/HEX.erofs   images by their digest
//	refs/KEY.json            what a reference stands for; KEY is its digest
//	locks/KEY                held by who makes that reference
//	tmp/                     work in progress, see scratch
//
// Several processes use one store at a time. A user of a blob holds a shared
// lock on it; who removes one holds it exclusively.
type Store struct{ dir string }

// Image is an image that can be used. Close it when the sandbox is gone.
type Image struct {
	Ref     Ref
	Digest  string // of the EROFS file; "" for host
	Path    string // of the EROFS file; "" for host
	Size    int64
	Config  Config
	Dropped int64 // devices, FIFOs and sockets that were left out

	file *os.File // holds the shared lock
}

// Close lets rm and gc remove the image again. It is safe to call twice.
func (i *Image) Close() error {
	if i.file == nil {
		return nil
	}
	err := i.file.Close()
	i.file = nil
	return err
}

// Update is one step of progress. Total is 0 when unknown.
type Update struct {
	Stage       Stage
	Note        string // a line for a person; may be empty
	Done, Total int64  // bytes
}

// Progress is called from one goroutine at a time.
type Progress func(Update)

// Options of Resolve. The zero value uses what is in the store and fetches
// what is not, within the default limits.
type Options struct {
	Limits        Limits
	Refresh       bool           // ask the source even when the store has the image
	Name          string         // also store the image under this name
	AuthFile      string         // registry credentials; "" means Docker's own file
	CAFile        string         // certificates that registries are trusted by; "" means the system's
	Mirror        string         // debian: URL to download from; "" leaves it to mmdebstrap
	AllowPrefixes []netip.Prefix // private ranges that the system policy opens for registries
	Progress      Progress
}

// Validate refuses options that cannot hold.
func (o Options) Validate() error {
	if o.Name != "" {
		if r, err := ParseRef(o.Name); err != nil || r.Kind != KindName {
			return &api.Error{
				Code: "image_name", Message: fmt.Sprintf("cannot use %q as the name of an image", o.Name),
				Hint: "names have lower-case letters, digits, '.', '_' and '-'",
			}
		}
	}
	if err := o.Limits.Validate(); err != nil {
		return &api.Error{Code: "image_limits", Message: err.Error()}
	}
	return nil
}

// Open opens the store in dir, and makes it if it is not there. It removes
// what earlier processes left when they were killed.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open image store: %w", err)
	}
	s := &Store{dir}
	for _, sub := range []string{"blobs/sha256", "refs", "locks", "tmp"} {
		if err := os.MkdirAll(s.path(sub), 0o700); err != nil {
			return nil, fmt.Errorf("cannot open image store: %w", err)
		}
	}
	cleanScratch(s.path("tmp")) // gc reports what cannot be removed
	return s, nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s *Store) blobPath(digest string) string {
	return s.path("blobs/sha256", strings.TrimPrefix(digest, "sha256:")+".erofs")
}

// record is what the store knows about one reference.
type record struct {
	Ref     string    `json:"ref"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"`
	Config  Config    `json:"config"`
	Dropped int64     `json:"dropped,omitempty"`
	Source  string    `json:"source,omitempty"` // digest of the image manifest
	State   string    `json:"state,omitempty"`  // of a local source, see source.state
	Created time.Time `json:"created"`

	used time.Time // the file's modification time
}

// maxRecord is an image configuration of maxConfigMsg with room to escape it.
const maxRecord = 1 << 20

func refKey(r Ref) string {
	sum := sha256.Sum256([]byte(r.String()))
	return hex.EncodeToString(sum[:])
}

func (s *Store) recordPath(key string) string { return s.path("refs", key+".json") }

// readRecord returns nil when there is none. A record that cannot be read is
// an error, because guessing would use an image that nobody asked for.
func (s *Store) readRecord(key string) (*record, error) {
	f, err := os.Open(s.recordPath(key))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read image record: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, fmt.Errorf("cannot read image record: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	r := &record{}
	if err := d.Decode(r); err != nil || !reDigest.MatchString(r.Digest) || r.Size < blockSize {
		return nil, &api.Error{
			Code: "image_record", Message: fmt.Sprintf("cannot read image record %q: it is damaged", f.Name()),
			Hint: "remove that file, and pull or build the image again", Err: err,
		}
	}
	if st, err := f.Stat(); err == nil {
		r.used = st.ModTime()
	}
	return r, nil
}

func (s *Store) writeRecord(r Ref, rec record) error {
	b, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode image record: %w", err)
	}
	return host.WriteFileAtomic(s.recordPath(refKey(r)), b, 0o600)
}

// records returns all that can be read, in no order.
func (s *Store) records() (all []record, err error) {
	names, err := filepath.Glob(s.recordPath("*"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		r, err := s.readRecord(strings.TrimSuffix(filepath.Base(name), ".json"))
		if r != nil {
			all = append(all, *r)
		}
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// openBlob opens an image and holds it. size 0 means unknown.
func (s *Store) openBlob(digest string, size int64) (*os.File, error) {
	for {
		f, err := os.Open(s.blobPath(digest))
		if err != nil {
			return nil, err
		}
		gone, err := hold(f)
		if err == nil && gone {
			f.Close()
			continue // it was removed or replaced in between
		}
		if err == nil {
			err = checkBlob(f, size)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

// hold takes the shared lock and tells whether the file still has a name.
func hold(f *os.File) (gone bool, err error) {
	if err := flock(f, syscall.LOCK_SH); err != nil {
		return false, fmt.Errorf("cannot hold image: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("cannot hold image: %w", err)
	}
	return st.Sys().(*syscall.Stat_t).Nlink == 0, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

func checkBlob(f *os.File, size int64) error {
	if size == 0 {
		st, err := f.Stat()
		if err != nil {
			return err
		}
		size = st.Size()
	}
	if err := checkSuper(f, size); err != nil {
		return &api.Error{
			Code: "image_corrupt", Message: fmt.Sprintf("cannot use image %q: %v", f.Name(), err),
			Hint: "pull or build the image again with --refresh", Err: err,
		}
	}
	return nil
}

// hashFile computes the digest of a whole file. The parent does that itself:
// hashing parses nothing, and a child's word would let it choose the name
// under which its output is stored.
func hashFile(f *os.File, size int64, progress func(done int64)) (string, error) {
	h := sha256.New()
	r := &hashingReader{r: io.NewSectionReader(f, 0, size), h: h, progress: progress}
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, 1<<20)); err != nil {
		return "", fmt.Errorf("cannot read image: %w", err)
	}
	return "sha256:" + r.sum(), nil
}
