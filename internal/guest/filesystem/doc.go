// Package filesystem holds the messages of the filesystem service, generated from
// filesystem.proto. It never holds hand-written code.
package filesystem
