// Package process ends, freezes and looks at the process of a node of any adapter, as the capabilities of package system ask for
// it, and proves it.
//
// It knows what is common to all adapters: a node is a container with a name and a volume. It must not import an adapter. An
// adapter hands the capabilities on, once it knows that the node is its own:
//
//	func (n *Node) process() process.Process { return process.Process{Name: n.name, Container: n.broker} }
//
//	func (c *Cluster) Pause(ctx context.Context, node system.Node) (string, error) {
//		n, err := c.own(node)
//		if err != nil {
//			return "", err
//		}
//		return n.process().Pause(ctx)
//	}
package process
