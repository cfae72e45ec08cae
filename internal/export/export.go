// Package export is the one writer of what a sandbox made to the host's file
// system (I6). It writes below one directory that it opened once, through
// os.Root, and makes files and directories only; what the names, modes and
// links of a guest say cannot lead it anywhere else.
package export

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"

	"caisson.dev/caisson/internal/guest/attach"
)

// Result is what was written.
type Result struct {
	Files   int
	Skipped int // links, devices, pipes
	Bytes   int64
	SHA256  string // of a single file
	Err     error
}

// maxEntries bounds the files and directories of one artifact.
const maxEntries = 100_000

// Write reads the entries of one artifact from r, up to and including its end
// entry, and makes them in dir, under name: a single file, or a tree. A file replaces a
// file of that name and never what a link points to. A tree is only made where
// nothing is yet, so that no older file can be confused with a new one. What
// is refused is still read to the end, so that the next artifact starts clean.
func Write(dir *os.Root, name string, r io.Reader, maxBytes int64) Result {
	w := &writer{in: bufio.NewReaderSize(r, 64<<10), left: maxBytes, base: name, dir: dir}
	w.owner, w.err = ownerOf(dir)
	if filepath.Base(name) != name || !filepath.IsLocal(name) {
		w.err = fmt.Errorf("%q is no file name", name)
	}
	w.copyAll()
	if w.err == nil && w.entries == 0 {
		w.err = errors.New("it is neither a file nor a directory")
	}
	if w.err != nil && w.tree {
		// A broken tree is removed: half a result is worse than none.
		_ = w.dir.RemoveAll(w.base)
	}
	return Result{Files: w.files, Skipped: w.skipped, Bytes: w.bytes, SHA256: w.sum, Err: w.err}
}

// writer is the state of one artifact. Once err is set nothing is written.
type writer struct {
	in    *bufio.Reader
	dir   *os.Root
	base  string
	owner owner
	left  int64
	tree  bool // we made dest as a directory

	entries, files, skipped int
	bytes                   int64
	sum                     string
	err                     error
}

func (w *writer) copyAll() {
	for {
		e, err := attach.ReadEntry(w.in)
		if err != nil {
			w.fail(err)
			return
		}
		if e.Type == attach.EntryEnd {
			if e.Size != 1 {
				w.fail(errors.New("the artifact did not arrive whole"))
			}
			return
		}
		if w.err == nil {
			w.fail(w.entry(e))
			continue
		}
		if _, err := io.CopyN(io.Discard, w.in, e.Size); err != nil {
			return
		}
	}
}

func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// entry writes one file or directory, and reads its bytes in every case.
func (w *writer) entry(e attach.Entry) error {
	body := &io.LimitedReader{R: w.in, N: e.Size}
	defer io.Copy(io.Discard, body)
	w.entries++
	if e.Type == attach.EntrySpecial && w.tree && w.entries <= maxEntries {
		w.skipped++
		return nil
	}
	w.left -= e.Size
	name, err := w.name(e.Name)
	switch {
	case err != nil:
		return err
	case w.entries > maxEntries:
		return fmt.Errorf("more than %d files and directories", maxEntries)
	case w.left < 0:
		return errors.New("larger than the limit on artifacts; raise it with --artifact-size")
	case e.Type != attach.EntryFile && e.Type != attach.EntryDir:
		return fmt.Errorf("refused %q, which is neither a file nor a directory", name)
	case e.Name != "" && !w.tree:
		return errors.New("the artifact is not a directory")
	case e.Type == attach.EntryDir:
		return w.mkdir(name, e.Name == "")
	case e.Name == "":
		return w.replace(name, e, body)
	}
	_, err = w.create(name, e, body)
	return err
}

// name maps a name inside the artifact to one below w.dir.
func (w *writer) name(inside string) (string, error) {
	if inside == "" {
		return w.base, nil
	}
	if !filepath.IsLocal(inside) || strings.ContainsFunc(inside, unicode.IsControl) {
		return "", fmt.Errorf("refused a file whose name is %q", inside)
	}
	return filepath.Join(w.base, inside), nil
}

func (w *writer) mkdir(name string, top bool) error {
	if err := w.dir.Mkdir(name, 0o755); err != nil {
		if top && errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%q is already there; a directory is only copied to a new name", w.base)
		}
		return fmt.Errorf("cannot make %q: %w", name, err)
	}
	w.tree = w.tree || top
	return w.owner.own(w.dir, name)
}

// replace writes beside name and renames, so that a reader sees the old file
// or the new one.
func (w *writer) replace(name string, e attach.Entry, body io.Reader) error {
	if fi, err := w.dir.Lstat(name); err == nil && fi.IsDir() {
		return fmt.Errorf("%q is a directory", name)
	}
	temp := fmt.Sprintf(".caisson-%s.tmp", rand.Text())
	sum, err := w.create(temp, e, body)
	if err == nil {
		err = w.dir.Rename(temp, name)
	}
	if err != nil {
		_ = w.dir.Remove(temp)
		return err
	}
	w.sum = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// create makes a new file. O_EXCL follows no link at the last component and
// os.Root none that leaves the directory.
func (w *writer) create(name string, e attach.Entry, body io.Reader) (hash.Hash, error) {
	mode := os.FileMode(0o644)
	if e.Exec {
		mode = 0o755
	}
	f, err := w.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, fmt.Errorf("cannot write %q: %w", name, err)
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), body)
	w.bytes += n
	if err != nil {
		return nil, fmt.Errorf("cannot write %q: %w", name, err)
	}
	w.files++
	return sum, f.Chown(w.owner.uid, w.owner.gid)
}

// owner is who owns what we make: the owner of the directory it goes to, not
// root on whose behalf we happen to run.
type owner struct{ uid, gid int }

func ownerOf(dir *os.Root) (owner, error) {
	fi, err := dir.Stat(".")
	if err != nil {
		return owner{}, fmt.Errorf("cannot stat the destination: %w", err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	return owner{int(st.Uid), int(st.Gid)}, nil
}

func (o owner) own(dir *os.Root, name string) error { return dir.Lchown(name, o.uid, o.gid) }
