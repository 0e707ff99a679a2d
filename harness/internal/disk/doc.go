// Package disk gives each node of a cluster a disk of its own that can lose power, fill up or get slow, without any effect
// on the file systems of the machine.
//
// It knows loop devices, ext4 and the shutdown ioctl, and nothing of brokers, suites or verdicts. It must not import any
// package of this module but harness/internal/container.
//
// A disk is an ext4 file system in a sparse image file. The images of a cluster lie in one volume of the container engine.
// A helper container, the only one with rights to loop devices, makes and mounts them in its own mount namespace; the
// engine mounts the same device for the broker, through a volume whose device is a link beside the image. Everything thus
// hangs on labelled containers and volumes: whatever ends the run, removing those removes mounts, loop devices and images,
// and nothing of it ever shows on the machine that conform runs on. It works the same whether conform is root or not.
//
//	rack, err := disk.Open(ctx, engine, owner, "k1-disks", disk.Spec{Name: "n1-data", MiB: 512})
//	defer rack.Remove(context.WithoutCancel(ctx))
//	node, err := engine.NewContainer(ctx, owner, container.Spec{..., Mounts: map[string]*container.Volume{"/data": rack.Disk("n1-data").Volume}})
//	err = rack.Sync(ctx) // the set-up is durable
//	outage, err := rack.Cut(ctx, []string{"n1-data"}, disk.Power{Freeze: pause, Kill: kill})
//	bit, detail := outage.Evidence()
//
// A power cut is: freeze the writers, shut the file systems down without flushing the log (FS_IOC_SHUTDOWN, mode 2: dirty
// pages and uncommitted journal are dropped), kill, unmount, and mount a fresh copy of the image. A copy has a superblock
// of its own, so that a mount of the dead one that somebody still holds is never taken for the broker's fault.
package disk
