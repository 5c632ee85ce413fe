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

// SmallDisk is a file system of its own that a test fills. It needs root.
type SmallDisk struct{ Dir string }

// diskName and the process that mounted it is what the system calls a disk.
const diskName = "meshlog-"

// MountSmallDisk makes dir, where it is missing, and a file system of so many
// MiB in it. The caller unmounts it; where it was killed before, the next one does.
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

// unmountStale takes away the disks of processes that are gone.
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

// Fill takes all the room that is left.
func (d *SmallDisk) Fill() error {
	f, err := os.OpenFile(d.ballast(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for _, size := range []int{1 << 20, 4 << 10} { // to the last page
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

// Free gives back what Fill has taken.
func (d *SmallDisk) Free() error { return os.Remove(d.ballast()) }

// Unmount takes the file system away, with its content; a process that still uses it
// keeps it until it ends.
func (d *SmallDisk) Unmount() error { return syscall.Unmount(d.Dir, syscall.MNT_DETACH) }
