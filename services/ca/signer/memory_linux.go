package signer

import "syscall"

// Types of file systems that are in memory, from statfs(2).
const (
	tmpfs = 0x01021994
	ramfs = 0x858458f6
)

// inMemory reports whether a file is on a file system without a disk.
func inMemory(path string) (bool, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return false, err
	}
	kind := uint32(s.Type)
	return kind == tmpfs || kind == ramfs, nil
}
