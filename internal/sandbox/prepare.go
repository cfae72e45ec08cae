package sandbox

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/guest"
	"caisson.dev/caisson/internal/guest/attach"
)

// users are the accounts that a program may run as. Both are inside only: the
// host knows neither.
var users = map[string]guest.User{
	"":     {Name: "user", UID: 1000, GID: 1000, Home: "/home/user"},
	"user": {Name: "user", UID: 1000, GID: 1000, Home: "/home/user"},
	"root": {Name: "root", UID: 0, GID: 0, Home: "/root"},
}

// interpreters says how each language runs code given on the command line and
// code in a file.
var interpreters = map[string]struct {
	cmd    string
	inline string   // flag that takes code
	before []string // what stands between code and arguments
}{
	"python": {"python3", "-c", nil},
	"node":   {"node", "-e", []string{"--"}},
	"bash":   {"bash", "-c", []string{"bash"}}, // its $0
}

// plan is a request turned into what driver and attach child need.
type plan struct {
	id   string
	user guest.User
	spec driver.Spec
	task attach.Task
}

func newPlan(cfg Config, req api.RunRequest) (plan, error) {
	user, ok := users[req.User]
	if !ok {
		return plan{}, &api.Error{Code: "bad_user", Message: fmt.Sprintf("no user %q inside", req.User), Hint: "use --user user (the default) or --user root"}
	}
	id, err := newID()
	if err != nil {
		return plan{}, err
	}
	token, err := newToken()
	if err != nil {
		return plan{}, err
	}
	mounts, guestMounts := planMounts(req.Mounts)
	gc, err := guestConfig(req, cfg, user, token, guestMounts).Encode()
	if err != nil {
		return plan{}, err
	}
	p := plan{id: id, user: user, spec: driver.Spec{
		ID: id, Skeleton: cfg.Skeleton, Image: cfg.Image.Path, Host: cfg.Image.Host,
		Mounts: mounts, GuestConfig: gc, Limits: hostLimits(req.Limits),
		MapUID: user.UID, MapGID: user.GID, Attached: true,
	}}
	p.task, err = newTask(cfg, req, user, token)
	return p, err
}

func planMounts(in []api.Mount) (mounts []driver.Mount, inside []guest.Mount) {
	for i, m := range in {
		mounts = append(mounts, driver.Mount{Source: m.Source, ReadOnly: m.ReadOnly, File: m.File})
		inside = append(inside, guest.Mount{Source: driver.MountPoint(i, m.File), Target: m.Target, ReadOnly: m.ReadOnly, File: m.File})
	}
	return mounts, inside
}

func guestConfig(req api.RunRequest, cfg Config, user guest.User, token string, mounts []guest.Mount) guest.Config {
	l := req.Limits
	return guest.Config{
		Token: token, Hostname: "caisson", Image: "/image",
		DiskBytes: l.Disk, DiskInodes: l.Inodes, ShmBytes: l.Shm,
		Mounts: mounts, Pids: l.Pids, NoFile: l.NoFile, FileSize: l.FileSize,
		User: user, WorkDir: cfg.Image.WorkDir, Env: envMap(cfg.Image.Env),
	}
}

func envMap(list []string) map[string]string {
	m := make(map[string]string, len(list))
	for _, kv := range list {
		if k, v, ok := strings.Cut(kv, "="); ok {
			m[k] = v
		}
	}
	return m
}

// newTask decides what is started. Everything else that the sandbox ever runs
// is started by that program.
func newTask(cfg Config, req api.RunRequest, user guest.User, token string) (attach.Task, error) {
	t := attach.Task{
		Token: token, Env: req.Env, Cwd: req.WorkDir, User: user.Name, TTY: req.TTY,
		Cols: cfg.Terminal.Cols, Rows: cfg.Terminal.Rows,
		Stdin: cfg.Stdio.In != nil, Output: req.Limits.Output,
	}
	if req.TTY {
		t.Env = withTerm(req.Env)
	}
	for _, a := range req.Artifacts {
		t.Collect = append(t.Collect, a.Path)
	}
	if req.Script == nil {
		if len(req.Argv) == 0 {
			return t, &api.Error{Code: "nothing_to_run", Message: "nothing to run", Hint: "caisson run script.py, caisson run -c CODE --lang python, or caisson run -- CMD ARG…"}
		}
		t.Cmd, t.Args = req.Argv[0], req.Argv[1:]
		return t, nil
	}
	in, ok := interpreters[req.Script.Lang]
	if !ok {
		return t, &api.Error{Code: "bad_lang", Message: fmt.Sprintf("no language %q", req.Script.Lang), Hint: "use --lang python, node or bash"}
	}
	t.Cmd = in.cmd
	if req.Script.Name == "" {
		t.Args = slices.Concat([]string{in.inline, string(req.Script.Code)}, in.before, req.Argv)
		return t, nil
	}
	file := path.Join(user.Home, path.Base(req.Script.Name))
	t.Files = []attach.File{{Path: file, Data: req.Script.Code}}
	t.Args = append([]string{file}, req.Argv...)
	return t, nil
}

// withTerm names a kind of terminal, which programs need to use one. It is a
// constant: the caller's own TERM would be something of the caller's inside.
func withTerm(env map[string]string) map[string]string {
	m := map[string]string{"TERM": "xterm-256color"}
	maps.Copy(m, env)
	return m
}
