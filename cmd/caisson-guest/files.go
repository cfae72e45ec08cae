package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
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
