// Package container is the only package that talks to the container engine: networks, volumes, pods, containers, images.
//
// It knows the engine's API and nothing of brokers, suites or verdicts. It must not import any other package of this
// module but fixtures. Every object it makes is named conform-<run>-... and carries the labels of its [Owner], so that
// [Engine.RemoveRun] and a sweep find it after a crash.
//
// A broker runs in a container that joins the network namespace of a [Pod]. The pod owns the address, the host name and
// the published ports, so all of them survive when the broker's container is killed and started again.
//
//	e, err := container.Connect(ctx)
//	network, err := e.NewNetwork(ctx, owner, "net")
//	data, err := e.NewVolume(ctx, owner, "n1-data")
//	pod, err := e.NewPod(ctx, owner, container.PodSpec{Name: "n1-pod", Network: network, Hostname: "n1", Ports: []int{9094}})
//	node, err := e.NewContainer(ctx, owner, container.Spec{Name: "n1", Image: image, Pod: pod, Cmd: cmd,
//		Mounts: map[string]*container.Volume{"/data": data}})
//	err = node.Start(ctx)
//	line, err := node.WaitLog(ctx, regexp.MustCompile(`Server started`))
//	addr := pod.HostPort(9094) // "127.0.0.1:49153"
//
// Published ports go through the engine's own proxy: a connection to one is accepted and then closed while nothing
// listens inside. "Connected" is therefore no sign of a living broker.
package container
