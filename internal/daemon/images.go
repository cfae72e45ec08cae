package daemon

import (
	"path/filepath"

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

// OpenImages opens the image store.
func OpenImages(p Paths) (*Images, error) {
	if err := p.prepare(); err != nil {
		return nil, err
	}
	return image.Open(filepath.Join(p.Data, "images"))
}
