package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"caisson.dev/caisson/api"
)

// byteSize is a flag such as 512MiB, 512m or 1g. Powers of 1024 either way:
// nobody who types 512m means 488 MiB.
type byteSize int64

func (b *byteSize) UnmarshalText(text []byte) error {
	n, err := parseBytes(string(text))
	if err != nil {
		return err
	}
	*b = byteSize(n)
	return nil
}

var units = map[string]int64{"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": api.MiB, "mb": api.MiB, "mib": api.MiB, "g": api.GiB, "gb": api.GiB, "gib": api.GiB}

func parseBytes(s string) (int64, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	i := strings.IndexFunc(t, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		i = len(t)
	}
	unit, ok := units[strings.TrimSpace(t[i:])]
	x, err := strconv.ParseFloat(t[:i], 64)
	if err == nil && ok && x == 0 {
		return 0, fmt.Errorf("a size of zero is no limit that can hold; see caisson limits")
	}
	if err != nil || !ok || x <= 0 || x*float64(unit) > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not a size; write it like 512MiB or 2g", s)
	}
	return int64(x * float64(unit)), nil
}

// parseMount reads SRC:DST[:ro|rw].
func parseMount(s string) (api.Mount, error) {
	src, rest, ok := strings.Cut(s, ":")
	dst, mode, hasMode := strings.Cut(rest, ":")
	if !ok || src == "" || dst == "" || hasMode && mode != "ro" && mode != "rw" {
		return api.Mount{}, &api.Error{Code: "bad_mount", Message: fmt.Sprintf("bad mount %q", s), Hint: "write it as SRC:DST, SRC:DST:ro or SRC:DST:rw; ro is the default"}
	}
	return api.Mount{Source: src, Target: dst, ReadOnly: mode != "rw"}, nil
}

// parseArtifact reads PATH[:DEST]; DEST is ./BASENAME when not given.
func parseArtifact(s string) (api.Artifact, error) {
	path, dest, _ := strings.Cut(s, ":")
	base := path[strings.LastIndex(path, "/")+1:]
	if dest == "" {
		dest = base
	}
	if path == "" || base == "" || base == "." || base == ".." || strings.HasSuffix(dest, "/") {
		return api.Artifact{}, &api.Error{Code: "bad_mount", Message: fmt.Sprintf("bad artifact %q", s), Hint: "write it as PATH or PATH:DEST, such as out/plot.png:plot.png"}
	}
	return api.Artifact{Path: path, Dest: dest}, nil
}

// parseEnv reads KEY=VALUE. A bare KEY is refused: nothing is inherited.
func parseEnv(list []string) (map[string]string, error) {
	env := make(map[string]string, len(list))
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" || strings.ContainsRune(kv, 0) {
			return nil, &api.Error{Code: "bad_env", Message: fmt.Sprintf("bad environment entry %q", k), Hint: "write it as KEY=VALUE; nothing is inherited, so a bare KEY has no value"}
		}
		env[k] = v
	}
	return env, nil
}
