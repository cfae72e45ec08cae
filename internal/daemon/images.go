package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"caisson.dev/caisson/internal/image"
)

// What the command line says about images and hears of them.
type (
	Images       = image.Store
	ImageRef     = image.Ref
	ImageOptions = image.Options
	ImageLimits  = image.Limits
	ImageEntry   = image.Entry
)

// CollectImages removes what nothing uses: images, and the guest images of
// other versions.
func CollectImages(ctx context.Context, s *Images, p Paths, unused time.Duration) (image.GCResult, error) {
	res, err := s.GC(ctx, unused)
	freed, serr := image.CleanSkeletons(filepath.Join(p.Data, "skeleton"))
	res.Freed += freed
	return res, errors.Join(err, serr)
}

// OpenImages opens the image store.
func OpenImages(p Paths) (*Images, error) {
	if err := p.prepare(); err != nil {
		return nil, err
	}
	return image.Open(filepath.Join(p.Data, "images"))
}
