package cli

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"caisson.dev/caisson/api"
)

// palette colours text on a terminal and leaves it alone anywhere else.
type palette struct{ on bool }

func newPalette(w io.Writer) palette {
	return palette{isTerminal(w) && os.Getenv("NO_COLOR") == ""}
}

func (p palette) wrap(code, s string) string {
	if !p.on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p palette) red(s string) string    { return p.wrap("31", s) }
func (p palette) yellow(s string) string { return p.wrap("33", s) }
func (p palette) dim(s string) string    { return p.wrap("2", s) }

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func writeJSON(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}

// size shows bytes to people, rounded.
func size(n int64) string {
	switch {
	case n >= api.GiB:
		return trimZero(float64(n)/api.GiB) + " GiB"
	case n >= api.MiB:
		return trimZero(float64(n)/api.MiB) + " MiB"
	case n >= 1<<10:
		return trimZero(float64(n)/(1<<10)) + " KiB"
	}
	return trimZero(float64(n)) + " B"
}

func trimZero(x float64) string {
	b, _ := json.Marshal(float64(int64(x*10+0.5)) / 10)
	return strings.TrimSuffix(string(b), ".0")
}

// span shows a duration to people, to three digits or so.
func span(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
