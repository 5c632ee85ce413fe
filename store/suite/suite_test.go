package suite

import "testing"

// disks are the stores; each function makes a new Disk.
var disks = map[string]func(t *testing.T) Disk{
	"bolt":     newBoltDisk,
	"memstore": newMemDisk,
}

// buses are the version chains; each function makes a Bus with a new chain.
var buses = map[string]func(t *testing.T) Bus{
	"memstore": newMemBus,
	"natsfeed": newNATSBus,
}

func TestStore(t *testing.T) {
	for driver, newDisk := range disks {
		t.Run(driver, func(t *testing.T) {
			t.Parallel() // the drivers wait for disks
			for _, c := range storeTests {
				t.Run(c.name, func(t *testing.T) { c.run(t, newDisk(t)) })
			}
		})
	}
}

func TestChain(t *testing.T) {
	for driver, newBus := range buses {
		t.Run(driver, func(t *testing.T) {
			t.Parallel() // the drivers wait for disks
			for _, c := range chainTests {
				t.Run(c.name, func(t *testing.T) { c.run(t, newBus(t)) })
			}
		})
	}
}
