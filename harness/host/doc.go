// Package host is the public door to the machine: it brings the container engine and the images ([Prepare]), says what is
// missing and how to mend it ([Doctor]), removes what dead runs left ([Sweep]) and keeps two runs from overcommitting the
// memory ([Reserve]).
//
// It knows apt, dockerd, debootstrap and image names. It must not import suites, faults, reports or adapters.
//
//	images, err := host.Prepare(ctx, host.Options{Systems: []fixtures.Version{kafka}, Progress: os.Stderr, Log: log})
//	ref := images[kafka.String()].Ref
package host
