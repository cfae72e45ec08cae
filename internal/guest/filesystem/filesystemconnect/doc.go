// Package filesystemconnect holds the Connect client and handler of the filesystem
// service, generated from filesystem.proto. It never holds hand-written code.
package filesystemconnect
