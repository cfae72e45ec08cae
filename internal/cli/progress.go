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
	last := ""
	return func(u daemon.Update) {
		if u.Stage.String() != last {
			last = u.Stage.String()
			fmt.Fprintf(w, "caisson: %s\n", last)
		}
	}
}

func bars(w io.Writer) daemon.Progress {
	var bar *progressbar.ProgressBar
	stage := ""
	return func(u daemon.Update) {
		if u.Stage.String() != stage || bar == nil {
			if bar != nil {
				_ = bar.Finish()
			}
			stage = u.Stage.String()
			bar = newBar(w, u)
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
		progressbar.OptionSetDescription(u.Stage.String()),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond),
	)
}
