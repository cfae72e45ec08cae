package main

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage tells what the sandbox uses of its disk and tasks. The host uses it
// for display: what it enforces or reports as fact it measures itself.
func (b *box) usage(w http.ResponseWriter, _ *http.Request) {
	bytes, inodes, _, err := diskUsage()
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	// One is the thread that starts them.
	writeJSON(w, map[string]int64{
		"processes":   max(readNumber(cgroups+"/user/pids.current")-1, 0),
		"disk_bytes":  bytes,
		"disk_inodes": inodes,
	})
}

func diskUsage() (bytes, inodes, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(upperDir, &st); err != nil {
		return 0, 0, 0, err
	}
	size := int64(st.Bsize)
	return int64(st.Blocks-st.Bfree) * size, int64(st.Files - st.Ffree), int64(st.Blocks) * size, nil
}

func readNumber(name string) int64 {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n
}

// metrics has the fields of E2B's /metrics. The share of processor time is
// left at zero: the guest kernel does not know it, the host does.
func (b *box) metrics(w http.ResponseWriter, _ *http.Request) {
	used, _, total, err := diskUsage()
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	meminfo, _ := os.ReadFile("/proc/meminfo")
	m := parseMeminfo(meminfo)
	memUsed := m["MemTotal"] - m["MemFree"] - m["Cached"]
	writeJSON(w, map[string]any{
		"ts": time.Now().Unix(), "cpu_count": runtime.NumCPU(), "cpu_used_pct": 0.0,
		"mem_total": m["MemTotal"], "mem_used": memUsed, "mem_cache": m["Cached"],
		"mem_total_mib": m["MemTotal"] >> 20, "mem_used_mib": memUsed >> 20,
		"disk_used": used, "disk_total": total,
	})
}

// parseMeminfo returns the lines of /proc/meminfo in bytes.
func parseMeminfo(b []byte) map[string]int64 {
	out := map[string]int64{}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			out[strings.TrimSuffix(f[0], ":")] = n << 10
		}
	}
	return out
}

func (b *box) envs(w http.ResponseWriter, _ *http.Request) {
	_, _, _, env := b.settings()
	if env == nil {
		env = map[string]string{}
	}
	writeJSON(w, env)
}

// initRequest is the body of POST /init. What it can ask for and we do not do
// is refused, never ignored.
type initRequest struct {
	EnvVars        map[string]string `json:"envVars"`
	AccessToken    string            `json:"accessToken"`
	DefaultUser    string            `json:"defaultUser"`
	DefaultWorkdir string            `json:"defaultWorkdir"`
	VolumeMounts   []any             `json:"volumeMounts"`
	CABundle       string            `json:"caBundle"`
}

// init changes what every later process gets. Only the host can call it: it
// asks for the token even when it sets a new one.
func (b *box) init(w http.ResponseWriter, r *http.Request) {
	var req initRequest
	if err := readJSON(w, r, &req); err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	if err := b.applyInit(req); err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (b *box) applyInit(req initRequest) error {
	if len(req.VolumeMounts) > 0 || req.CABundle != "" {
		return errors.New("volumeMounts and caBundle are not supported")
	}
	if _, err := environment(asRoot, req.EnvVars); err != nil {
		return err
	}
	var user *account
	if req.DefaultUser != "" {
		a, err := b.lookup(req.DefaultUser)
		if err != nil {
			return refuse("invalid username: '%s'", clip(req.DefaultUser))
		}
		user = &a
	}
	if req.DefaultWorkdir != "" && !strings.HasPrefix(req.DefaultWorkdir, "/") {
		return errors.New("defaultWorkdir is not absolute")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	env := maps.Clone(b.cfg.Env) // others may be reading the old one
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, req.EnvVars)
	b.cfg.Env = env
	if req.AccessToken != "" {
		b.cfg.Token = req.AccessToken
	}
	if user != nil {
		b.cfg.User.Name, b.cfg.User.UID, b.cfg.User.GID, b.cfg.User.Home = user.name, user.uid, user.gid, user.home
	}
	if req.DefaultWorkdir != "" {
		b.cfg.WorkDir = req.DefaultWorkdir
	}
	return nil
}
