package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// SmallDisk is a small file system that a test can fill. It needs root.
type SmallDisk struct{ Dir string }

// diskName and the process id of the owner are the device name of the mount.
const diskName = "meshlog-"

// MountSmallDisk creates dir if it is missing, and mounts a file system of mib
// MiB on it. The caller unmounts it; if the caller is killed before, the next
// MountSmallDisk does.
func MountSmallDisk(dir string, mib int) (*SmallDisk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := unmountStale(); err != nil {
		return nil, err
	}
	if err := syscall.Mount(fmt.Sprint(diskName, os.Getpid()), dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		return nil, fmt.Errorf("mount a small disk on %s: %w; run this test as root", dir, err)
	}
	return &SmallDisk{dir}, nil
}

// unmountStale unmounts the disks of processes that have ended.
func unmountStale() error {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		owner, ours := strings.CutPrefix(fields[0], diskName)
		if pid, err := strconv.Atoi(owner); !ours || err != nil || syscall.Kill(pid, 0) == nil {
			continue
		}
		errs = append(errs, (&SmallDisk{fields[1]}).Unmount())
	}
	return errors.Join(errs...)
}

func (d *SmallDisk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Fill uses up all the space that is left.
func (d *SmallDisk) Fill() error {
	f, err := os.OpenFile(d.ballast(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for _, size := range []int{1 << 20, 4 << 10} { // down to the last page
		for chunk := make([]byte, size); err == nil; {
			_, err = f.Write(chunk)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return errors.Join(err, f.Close())
		}
		err = nil
	}
	return f.Close()
}

// Free gives back the space that Fill has used up.
func (d *SmallDisk) Free() error { return os.Remove(d.ballast()) }

// Unmount removes the file system with its content. A process that still uses it
// keeps it until it ends.
func (d *SmallDisk) Unmount() error { return syscall.Unmount(d.Dir, syscall.MNT_DETACH) }
