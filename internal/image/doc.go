// Package image turns what a user names (a directory, an OCI image, a list of
// Debian packages) into one read-only EROFS file in a content-addressed store.
// It never runs anything from an image and never makes a host path from a name
// that an image contains.
//
// The rule a reader must keep: every byte of an image is hostile. Archives,
// registries and package trees are read in unprivileged children of ours
// (children.go, I15); they all end in one place, the in-memory tree of
// tree.go, where names are resolved and nowhere else. The parent opens files,
// copies bytes, computes digests, and reads only the small messages of wire.go.
package image
