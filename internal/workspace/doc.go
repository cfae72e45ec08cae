// Package workspace is the host's side of a copy-on-write project directory:
// it finds the files with secrets that a sandbox must not see, keeps what a
// sandbox changed (a hostile archive) as digests and names that nothing is
// written under, shows it, and applies what was reviewed through the one
// writer.
package workspace
