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
)

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
