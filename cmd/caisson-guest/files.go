package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// target is the account and the path of a request to /files.
func (b *box) target(r *http.Request) (account, string, error) {
	q := r.URL.Query()
	a, err := b.lookup(q.Get("username"))
	if err != nil {
		return account{}, "", fmt.Errorf("%w: '%s'", errUnknownUser, clip(q.Get("username")))
	}
	_, _, workDir, _ := b.settings()
	name, err := resolvePath(q.Get("path"), a.home, workDir)
	return a, name, err
}

// fileError answers with the status that E2B's clients turn into their errors.
func fileError(w http.ResponseWriter, name string, err error) {
	var refused *refusedError
	switch {
	case errors.Is(err, errUnknownUser):
		writeError(w, http.StatusUnauthorized, err)
	case errors.Is(err, os.ErrNotExist):
		writeError(w, http.StatusNotFound, fmt.Errorf("path '%s' does not exist", name))
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		writeError(w, http.StatusInsufficientStorage, errors.New("not enough disk space available"))
	case errors.As(err, &refused), errors.Is(err, errBadPath), errors.Is(err, unix.ENOTDIR),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EFBIG), errors.Is(err, os.ErrExist):
		writeError(w, http.StatusBadRequest, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS):
		writeError(w, http.StatusForbidden, err)
	default:
		writeError(w, http.StatusInternalServerError, err)
	}
}

// openRegular opens a file as a user. It never waits, whatever guest root put
// there, and gives nothing but a regular file.
func (b *box) openRegular(a account, name string, flags int, parents bool) (*os.File, os.FileInfo, error) {
	var f *os.File
	var st os.FileInfo
	err := b.act(a, name, func() (err error) {
		if parents {
			if err := makeDirs(a, path.Dir(name)); err != nil {
				return err
			}
		}
		f, err = os.OpenFile(name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o644)
		if errors.Is(err, unix.EISDIR) {
			return refuse("path '%s' is a directory", name)
		}
		if errors.Is(err, unix.ENXIO) {
			return refuse("path '%s' is not a regular file", name)
		}
		if err != nil {
			return err
		}
		if st, err = f.Stat(); err == nil && st.IsDir() {
			err = refuse("path '%s' is a directory", name)
		} else if err == nil && !st.Mode().IsRegular() {
			err = refuse("path '%s' is not a regular file", name)
		} else if err == nil && parents {
			err = own(a, f)
		}
		if err != nil {
			f.Close()
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return f, st, nil
}

func (b *box) getFile(w http.ResponseWriter, r *http.Request) {
	a, name, err := b.target(r)
	if err != nil {
		fileError(w, name, err)
		return
	}
	f, st, err := b.openRegular(a, name, os.O_RDONLY, false)
	if err != nil {
		fileError(w, name, err)
		return
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(name)}))
	h.Set("Vary", "Accept-Encoding")
	switch {
	case st.Size() == 0:
		sendUnsized(w, f)
	case plainRequest(r) && acceptsGzip(r.Header.Get("Accept-Encoding")):
		h.Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if _, err := io.Copy(z, f); err != nil {
			panic(http.ErrAbortHandler) // a short body must not look whole
		}
		if z.Close() != nil {
			panic(http.ErrAbortHandler)
		}
	default:
		http.ServeContent(w, r, "", st.ModTime(), f)
	}
}

// sendUnsized sends a file that says it is empty: it is, or it is a file of
// /proc, which is read to its end.
func sendUnsized(w http.ResponseWriter, f *os.File) {
	first := make([]byte, 32<<10)
	n, err := io.ReadFull(f, first)
	if err != nil {
		w.Header().Set("Content-Length", strconv.Itoa(n))
		w.Write(first[:n])
		return
	}
	w.Write(first)
	if _, err := io.Copy(w, f); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// plainRequest reports whether the whole file is wanted, unconditionally.
func plainRequest(r *http.Request) bool {
	for _, k := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if r.Header.Get(k) != "" {
			return false
		}
	}
	return true
}

// acceptsGzip reads an Accept-Encoding header.
func acceptsGzip(h string) bool {
	for part := range strings.SplitSeq(h, ",") {
		name, params, _ := strings.Cut(part, ";")
		if strings.TrimSpace(name) != "gzip" {
			continue
		}
		q, ok := strings.CutPrefix(strings.TrimSpace(params), "q=")
		if !ok {
			return true
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
		return err == nil && v > 0
	}
	return false
}

// written is one element of the answer to an upload.
type written struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// postFiles writes the body, or the parts of a form, as a user.
func (b *box) postFiles(w http.ResponseWriter, r *http.Request) {
	a, name, err := b.target(r)
	if err != nil {
		fileError(w, name, err)
		return
	}
	meta, err := parseMetadata(r.Header)
	if err != nil {
		fileError(w, name, err)
		return
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			fileError(w, name, refuse("cannot read the body: %v", err))
			return
		}
		body = z
	}
	up := upload{box: b, user: a, meta: meta, path: name, given: r.URL.Query().Get("path") != ""}
	done, err := up.receive(r.Header.Get("Content-Type"), body)
	if err != nil {
		fileError(w, up.path, err)
		return
	}
	writeJSON(w, done)
}

// upload is one request to write files.
type upload struct {
	*box
	user  account
	meta  map[string]string
	path  string // the destination, or that of the last part
	given bool   // the request named it
}

func (u *upload) receive(contentType string, body io.Reader) ([]written, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err == nil && kind == "multipart/form-data" {
		return u.parts(multipart.NewReader(body, params["boundary"]))
	}
	if err != nil && contentType != "" || kind != "" && kind != "application/octet-stream" {
		return nil, refuse("cannot read a body of type %q", clip(contentType))
	}
	if !u.given {
		return nil, refuse("no path")
	}
	f, err := u.write(body)
	if err != nil {
		return nil, err
	}
	return []written{f}, nil
}

// maxParts bounds the files of one request.
const maxParts = 1024

func (u *upload) parts(m *multipart.Reader) ([]written, error) {
	var done []written
	seen := map[string]bool{}
	fixed := u.path
	for {
		part, err := m.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, refuse("cannot read the form: %v", err)
		}
		name, file := partName(part.Header.Get("Content-Disposition"))
		if name != "file" {
			continue
		}
		u.path = fixed
		if !u.given {
			if u.path, err = resolvePath(file, u.user.home, ""); err != nil || file == "" {
				return nil, refuse("no path for a file of the form")
			}
		}
		if seen[u.path] || len(seen) == maxParts {
			return nil, refuse("the form has more than one file for '%s', or more than %d", u.path, maxParts)
		}
		seen[u.path] = true
		f, err := u.write(part)
		if err != nil {
			return nil, err
		}
		done = append(done, f)
	}
	if len(done) == 0 {
		return nil, refuse("the form has no file")
	}
	return done, nil
}

// partName reads a Content-Disposition header. Unlike mime/multipart it keeps
// the directories of a file name: clients send whole paths there.
func partName(disposition string) (name, file string) {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		return "", ""
	}
	return params["name"], params["filename"]
}

func (u *upload) write(body io.Reader) (written, error) {
	f, _, err := u.openRegular(u.user, u.path, os.O_WRONLY|os.O_CREATE, true)
	if err != nil {
		return written{}, err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return written{}, err
	}
	if _, err := io.Copy(f, body); err != nil {
		return written{}, bodyError(err)
	}
	// As root, which the open file has earned: the rules for attributes look
	// at the owner, not at how the file was opened.
	if err := u.files.as(asRoot, func() error { return writeMetadata(f, u.meta) }); err != nil {
		return written{}, fmt.Errorf("cannot write metadata: %w", err)
	}
	return written{path.Base(u.path), u.path, "file", u.meta}, f.Close()
}

// bodyError tells a body that is broken from a file that cannot be written.
func bodyError(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return err
	}
	return refuse("cannot read the body: %v", err)
}

// composeFiles joins files into one and removes them. The parts stay until
// the whole is in its place.
func (b *box) composeFiles(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := readJSON(w, r, &req); err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	a, err := b.lookup(req.Username)
	if err != nil {
		fileError(w, "", fmt.Errorf("%w: '%s'", errUnknownUser, clip(req.Username)))
		return
	}
	dst, err := resolvePath(req.Destination, a.home, "")
	if err != nil || req.Destination == "" || len(req.Sources) == 0 {
		fileError(w, dst, refuse("source_paths and destination are needed"))
		return
	}
	if at, err := b.compose(a, req.Sources, dst); err != nil {
		fileError(w, at, err)
		return
	}
	writeJSON(w, written{path.Base(dst), dst, "file", nil})
}

func (b *box) compose(a account, sources []string, dst string) (at string, err error) {
	tmp := fmt.Sprintf("%s.compose-%s", dst, randomID())
	out, _, err := b.openRegular(a, tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, true)
	if err != nil {
		return dst, err
	}
	defer out.Close()
	defer func() {
		if err != nil {
			b.act(a, tmp, func() error { return os.Remove(tmp) })
		}
	}()
	var names []string
	for _, s := range sources {
		name, err := resolvePath(s, a.home, "")
		if err != nil {
			return s, err
		}
		in, _, err := b.openRegular(a, name, os.O_RDONLY, false)
		if err != nil {
			return name, err
		}
		_, err = io.Copy(out, in)
		in.Close()
		if err != nil {
			return dst, err
		}
		names = append(names, name)
	}
	return dst, b.act(a, dst, func() error {
		if err := os.Rename(tmp, dst); err != nil {
			return err
		}
		for _, n := range names {
			if n != dst {
				os.Remove(n)
			}
		}
		return nil
	})
}
