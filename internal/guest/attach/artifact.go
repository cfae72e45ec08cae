package attach

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// EntryType is what an entry stands for. An artifact has files and directories,
// and EntrySpecial for what never leaves a guest. The changes of a workspace
// have the others too.
type EntryType uint8

const (
	EntryEnd EntryType = iota // end of the artifact; Size is 1 if it is whole
	EntryFile
	EntryDir
	EntryLink    // a symlink; the body is its target
	EntryGone    // something of the workspace that was deleted
	EntryReplace // a directory that stands in place of the workspace's, whose entries are gone
	EntrySpecial // a device, pipe or socket, of an artifact a link too: told, never made
)

// Entry is the head of one file or directory on the artifact pipe. Name is
// relative to the artifact or workspace and empty for that itself.
type Entry struct {
	Type EntryType
	Exec bool   // the only part of the mode that matters for an artifact
	Mode uint16 // permission, setuid, setgid and sticky bits, as the guest says
	Size int64  // bytes of body that follow
	Name string
}

const (
	entryHead = 1 + 1 + 2 + 8 + 2
	maxName   = 4096
	modeBits  = 0o7777
)

func (e Entry) encode() []byte {
	b := make([]byte, entryHead, entryHead+len(e.Name))
	b[0] = byte(e.Type)
	if e.Exec {
		b[1] = 1
	}
	binary.LittleEndian.PutUint16(b[2:], e.Mode)
	binary.LittleEndian.PutUint64(b[4:], uint64(e.Size))
	binary.LittleEndian.PutUint16(b[12:], uint16(len(e.Name)))
	return append(b, e.Name...)
}

// ReadEntry reads one entry head, in the parent. The writer checks the name
// again; here it is only bounded.
func ReadEntry(r io.Reader) (Entry, error) {
	b := make([]byte, entryHead)
	if _, err := io.ReadFull(r, b); err != nil {
		return Entry{}, fmt.Errorf("cannot read an artifact entry: %w", err)
	}
	n := int(binary.LittleEndian.Uint16(b[12:]))
	e := Entry{
		Type: EntryType(b[0]), Exec: b[1] == 1, Mode: binary.LittleEndian.Uint16(b[2:]),
		Size: int64(binary.LittleEndian.Uint64(b[4:])),
	}
	if e.Type > EntrySpecial || b[1] > 1 || e.Mode > modeBits || e.Size < 0 || n > maxName {
		return Entry{}, errors.New("cannot read an artifact entry: bad head")
	}
	name := make([]byte, n)
	if _, err := io.ReadFull(r, name); err != nil {
		return Entry{}, fmt.Errorf("cannot read an artifact name: %w", err)
	}
	e.Name = string(name)
	return e, nil
}

// collect streams artifact i from the guest to the parent. The tar that the
// guest makes is hostile: it is decoded here, and what the parent gets is the
// plain form above. An end entry follows in every case.
func (c *child) collect(ctx context.Context, i int64) error {
	if i < 0 || i >= int64(len(c.task.Collect)) {
		return errors.New("no such artifact")
	}
	// Not the file itself: it would be given the tar reader to read from, whose
	// error would then be taken for one of the pipe, and nothing could follow.
	w := bufio.NewWriterSize(struct{ io.Writer }{c.artifacts}, 64<<10)
	err := c.copyArtifact(ctx, c.task.Collect[i], w)
	end := Entry{Type: EntryEnd}
	if err == nil {
		end.Size = 1
	}
	if _, werr := w.Write(end.encode()); werr != nil {
		return werr
	}
	return errors.Join(err, w.Flush())
}

func (c *child) copyArtifact(ctx context.Context, name string, w *bufio.Writer) error {
	q := url.Values{"path": {name}, "username": {c.task.User}}
	resp, err := c.guest.request(ctx, http.MethodGet, "/caisson/tar?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return copyTar(resp.Body, w)
}

// copyTar turns a tar stream into entries. Its first entry is the artifact
// itself; the others lie below it.
func copyTar(r io.Reader, w io.Writer) error {
	tr := tar.NewReader(r)
	root := ""
	for first := true; ; first = false {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			if first {
				return errors.New("the guest sent an empty archive")
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read the guest's archive: %w", err)
		}
		name := path.Clean("/" + h.Name)
		if first {
			root = name
		}
		e, ok := entryOf(h, root, name)
		if !ok {
			continue
		}
		if err := copyEntry(e, tr, w); err != nil {
			return err
		}
	}
}

// entryOf returns the entry for h, or false for what does not leave a guest.
func entryOf(h *tar.Header, root, name string) (Entry, bool) {
	e := Entry{Exec: h.Mode&0o100 != 0, Mode: uint16(h.Mode & modeBits), Name: strings.TrimPrefix(strings.TrimPrefix(name, root), "/")}
	if name != root && !strings.HasPrefix(name, strings.TrimSuffix(root, "/")+"/") || len(e.Name) > maxName {
		return Entry{}, false
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Type, e.Size = EntryFile, h.Size
	case tar.TypeDir:
		e.Type = EntryDir
	default:
		e.Type, e.Name = EntrySpecial, "" // counted; nobody needs its name
	}
	return e, e.Size >= 0
}

func copyEntry(e Entry, r io.Reader, w io.Writer) error {
	if _, err := w.Write(e.encode()); err != nil {
		return err
	}
	// A short file is padded, so that the parent's framing survives a guest
	// that promised more than it sent; the end entry then says it is broken.
	n, err := io.CopyN(w, r, e.Size)
	if err == nil {
		return nil
	}
	_, perr := io.CopyN(w, zeros{}, e.Size-n)
	return errors.Join(fmt.Errorf("the guest's archive is cut short: %w", err), perr)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
