package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"caisson.dev/caisson/internal/daemon"
)

// newProgress shows what takes longer than a moment: a bar on a terminal, one
// line for each stage anywhere else, nothing when quiet.
func newProgress(w io.Writer, quiet bool) daemon.Progress {
	switch {
	case quiet:
		return nil
	case isTerminal(w):
		return bars(w)
	}
	said := map[string]bool{}
	return func(u daemon.Update) {
		if name := stageName(u); !said[name] {
			said[name] = true
			fmt.Fprintf(w, "caisson: %s\n", name)
		}
	}
}

// stageName is what is being done, in the words of a user.
func stageName(u daemon.Update) string {
	switch s := u.Stage.String(); s {
	case "wait":
		return "waiting for another process that makes the same image"
	case "start":
		return "preparing the image"
	case "build":
		return "installing packages"
	case "unpack":
		return "reading the files of the image"
	case "write":
		return "writing the image"
	case "verify":
		return "computing its digest"
	default:
		return s
	}
}

func bars(w io.Writer) daemon.Progress {
	var bar *progressbar.ProgressBar
	stage := ""
	return func(u daemon.Update) {
		name := stageName(u)
		if stage == "installing packages" && u.Stage.String() == "unpack" && u.Total == 0 {
			return // packages are unpacked into the stream while they are installed
		}
		if name != stage || bar == nil {
			if bar != nil {
				_ = bar.Finish()
			}
			stage = name
			bar = newBar(w, u)
		}
		if u.Note != "" {
			bar.Describe(name + ": " + u.Note)
		}
		if u.Total > 0 {
			bar.ChangeMax64(u.Total)
		}
		_ = bar.Set64(u.Done)
		if u.Total > 0 && u.Done >= u.Total {
			_ = bar.Finish()
			bar = nil
		}
	}
}

func newBar(w io.Writer, u daemon.Update) *progressbar.ProgressBar {
	total := u.Total
	if total <= 0 {
		total = -1 // a spinner
	}
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(stageName(u)),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond),
	)
}
