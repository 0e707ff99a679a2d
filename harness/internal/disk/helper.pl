# Works on mounted disks inside the helper container. Needs perl-base only.
#
#   perl helper.pl canary TOKEN DIR...   two files on each: one fsynced, one not
#   perl helper.pl cut DIR...            tells what is not on disk yet, then shuts all of them down, without a flush
#   perl helper.pl check TOKEN DIR...    tells which canaries are there, and removes them
#   perl helper.pl probe DIR...          writes, fsyncs, reads and removes a file
#   perl helper.pl rot DIR PATTERN OFFSET COUNT   flips a bit (COUNT 0) or cuts COUNT bytes off the end of one file
#
# Output: one fact a line, fields parted by tabs. Exit code 1 with a message when anything fails.
use strict;
use warnings;
use IO::Handle;

my ($durable, $lost) = ('.conform-fsynced', '.conform-not-fsynced');

sub spit {
    my ($path, $content, $sync) = @_;
    open(my $f, '>', $path) or die "create $path: $!\n";
    print {$f} $content or die "write $path: $!\n";
    $f->flush or die "write $path: $!\n";
    if ($sync) { $f->sync or die "fsync $path: $!\n" }
    close($f) or die "close $path: $!\n";
}

sub sync_dir {
    my ($dir) = @_;
    open(my $d, '<', $dir) or die "open $dir: $!\n";
    $d->sync or die "fsync $dir: $!\n";
}

sub slurp {
    my ($path) = @_;
    open(my $f, '<', $path) or return undef;
    local $/;
    my $content = <$f>;
    return defined $content ? $content : '';
}

# Bytes of a file that are in the page cache only; undef where the kernel has no cachestat(2) (before 6.5).
sub dirty {
    my ($path) = @_;
    open(my $f, '<', $path) or return 0;
    my ($range, $stat) = (pack('QQ', 0, 0), "\0" x 40);
    return undef if syscall(451, fileno($f), $range, $stat, 0) != 0;
    my (undef, $pages, $writeback) = unpack('QQQ', $stat);
    return 4096 * ($pages + $writeback);
}

sub walk {
    my ($dir, $visit) = @_;
    opendir(my $d, $dir) or return;
    for my $name (readdir $d) {
        next if $name eq '.' || $name eq '..';
        my $path = "$dir/$name";
        next if -l $path;
        if (-d _) { walk($path, $visit) } elsif (-f _) { $visit->($path) }
    }
}

sub survey {
    my ($disk) = @_;
    my ($total, %part) = (0);
    my $known = 1;
    walk($disk, sub {
        my ($path) = @_;
        my $bytes = dirty($path);
        if (!defined $bytes) { $known = 0; return }
        return unless $bytes;
        my ($top, $rest) = split(m{/}, substr($path, length($disk) + 1), 2);
        return unless defined $rest; # canaries, checkpoints: not what a client sent
        $total += $bytes;
        $part{$top} += $bytes;
    });
    print "dirty\t$disk\t", ($known ? $total : -1), "\n";
    print "part\t$disk\t$_\t$part{$_}\n" for sort keys %part;
}

my %do = (
    canary => sub {
        my ($token, @disks) = @_;
        for my $disk (@disks) {
            spit("$disk/$durable", $token, 1);
            sync_dir($disk);
            spit("$disk/$lost", $token, 0);
        }
    },
    cut => sub {
        my (@disks) = @_;
        survey($_) for @disks;
        my @open;
        for my $disk (@disks) {
            open(my $d, '<', $disk) or die "open $disk: $!\n";
            push @open, $d;
        }
        for my $i (0 .. $#disks) {
            my $no_log_flush = pack('L', 2);
            ioctl($open[$i], 0x8004587d, $no_log_flush) or die "shut $disks[$i] down: $!\n";
            print "down\t$disks[$i]\n";
        }
        my $expire = slurp('/proc/sys/vm/dirty_expire_centisecs');
        print "writeback\t$1\n" if defined $expire && $expire =~ /^(\d+)/;
    },
    check => sub {
        my ($token, @disks) = @_;
        for my $disk (@disks) {
            my ($kept, $dropped) = (slurp("$disk/$durable"), slurp("$disk/$lost"));
            print join("\t", 'canaries', $disk, (defined $kept && $kept eq $token) ? 1 : 0, (defined $dropped && $dropped eq $token) ? 0 : 1), "\n";
            unlink("$disk/$durable", "$disk/$lost");
        }
    },
    probe => sub {
        my (@disks) = @_;
        for my $disk (@disks) {
            my $path = "$disk/.conform-probe";
            spit($path, 'probe', 1);
            sync_dir($disk);
            my $got = slurp($path);
            die "read $path: not what was written\n" unless defined $got && $got eq 'probe';
            unlink($path) or die "remove $path: $!\n";
        }
    },
    rot => sub {
        my ($dir, $pattern, $offset, $count) = @_;
        my @files = sort grep { -f $_ && -s _ } glob("$dir/$pattern");
        die "no file that is not empty matches $pattern\n" unless @files;
        my $path = $files[-1];
        my $size = -s $path;
        my $name = substr($path, length($dir) + 1);
        if ($count) {
            die "$name has $size bytes only\n" if $count > $size;
            truncate($path, $size - $count) or die "truncate $name: $!\n";
            open(my $f, '+<', $path) or die "open $name: $!\n";
            $f->sync or die "fsync $name: $!\n";
            printf "cut\t%s\t%d\t%d\n", $name, $size, -s $path;
            return;
        }
        $offset = $offset % $size;
        open(my $f, '+<:raw', $path) or die "open $name: $!\n";
        seek($f, $offset, 0) && read($f, my $old, 1) == 1 or die "read $name: $!\n";
        my $new = chr(ord($old) ^ 1);
        seek($f, $offset, 0) or die "seek $name: $!\n";
        print {$f} $new or die "write $name: $!\n";
        $f->flush && $f->sync or die "fsync $name: $!\n";
        seek($f, $offset, 0) && read($f, my $now, 1) == 1 or die "read $name: $!\n";
        die "$name at $offset is unchanged\n" if $now eq $old;
        printf "flip\t%s\t%d\t%d\t%d\t%d\n", $name, $size, $offset, ord($old), ord($now);
    },
);

STDOUT->autoflush(1);
my $command = shift(@ARGV) // '';
my $what = $do{$command} or die "no command '$command'\n";
$what->(@ARGV);
